"""What became of each request of a recording, and requests that will become the same.

Where no token ids are recorded, others stand for them: the last token of a block is a number of the
block's hash, so that blocks are equal where they were, the token that ended a sequence is one that ends
it, and all others are 0. What a sequence would have done beyond its recorded output nobody knows: it
goes on with blocks that are like no others.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from engine_core.recording.recorder import HASH_BYTES
from engine_core.recording.searches import ReplayedSearch, replay_beams
from engine_core.request import FinishReason, PendingPromptLogprobs, Request
from engine_core.step.plan import RowParameters
from pagewire.internal.v1.recording_pb2 import RecordedArrival, RecordedCall, RecordedChoice, RecordedEnd
from pagewire.ipc.columns import unpack_u32, unpack_u32_array
from pagewire.v1.generation_pb2 import LogprobOptions, SamplingParams

_PLAIN = 0
_FIRST_OWN = 1 << 31
"""Tokens of our own begin here: above every vocabulary."""


@dataclass(slots=True)
class Story:
    """One request: how it came, and what is known of its sequences."""

    arrival: RecordedArrival
    ends: dict[int, RecordedEnd] = field(default_factory=dict)  # by index
    prompt: "array[int]" = field(default_factory=lambda: array("I"))
    outputs: "list[array[int]]" = field(default_factory=list)  # by index
    choices: dict[int, RecordedChoice] = field(default_factory=dict)  # of a beam search, by length
    own: dict[tuple[int, int], int] = field(default_factory=dict)  # (position, beam) -> token of our own
    last_tokens: set[tuple[int, int]] = field(default_factory=set)  # (reason, token) that ends a sequence

    def num_tokens(self, index: int) -> int:
        """Tokens of a sequence, prompt and output: as many as it had, or else as it might have."""
        arrival, end = self.arrival, self.ends.get(index)
        if end is not None and end.num_output_tokens:
            return arrival.prompt_len + end.num_output_tokens
        return min(arrival.prompt_len + arrival.max_tokens, arrival.max_model_len)


class Stories:
    """The stories of all requests of a recording, by number."""

    def __init__(
        self, calls: Iterable[RecordedCall], *, block_size: int, has_tokens: bool, as_far: bool = False
    ) -> None:
        """as_far: each sequence ends where it ended in the recording, also where that was by an abort."""
        self._block_size = block_size
        self._has_tokens = has_tokens
        self._as_far = as_far
        self._own = count(_FIRST_OWN)
        self._by_hash: dict[bytes, int] = {}
        self._stories: dict[int, Story] = {}
        for call in calls:
            if call.HasField("arrival"):
                arrival = RecordedArrival()
                arrival.CopyFrom(call.arrival)  # a part of a chunk would keep all of it in memory
                self._stories[arrival.number] = Story(arrival)
            elif call.HasField("end"):
                end = RecordedEnd()
                end.CopyFrom(call.end)
                self._stories[end.number].ends[end.index] = end
            for choice in call.result.choices:
                copy = RecordedChoice()
                copy.CopyFrom(choice)
                self._stories[copy.number].choices[copy.length] = copy
        for story in self._stories.values():
            self._tell(story)

    def __getitem__(self, number: int) -> Story:
        return self._stories[number]

    def __iter__(self) -> Iterator[Story]:
        return iter(self._stories.values())

    def numbers(self) -> list[int]:
        """Of all requests."""
        return list(self._stories)

    def token(self, number: int, index: int, position: int) -> int:
        """The token of a sequence at a position of its output."""
        story = self._stories[number]
        output, first = story.outputs[index], len(story.prompt)
        while len(output) <= position:
            output.append(next(self._own) if self._ends_block(first + len(output)) else _PLAIN)
        return output[position]

    def request(self, number: int) -> Request:
        """The request as it arrived."""
        story = self._stories[number]
        arrival = story.arrival
        eos, stop = (
            frozenset(token for its, token in story.last_tokens if its == reason)
            for reason in (FinishReason.EOS, FinishReason.STOP)
        )
        min_tokens = 0 if self._as_far else arrival.min_tokens
        request = Request(
            frontend=b"",
            handle=number,
            request_id=str(number),
            prompt=story.prompt,
            parameters=RowParameters(SamplingParams(n=arrival.n), min_tokens, (), ()),
            max_tokens=arrival.max_tokens,
            max_model_len=arrival.max_model_len,
            eos_token_ids=eos,
            stop_token_ids=stop,
            arrival=arrival.arrival,
            key=arrival.suspect,
            priority=arrival.priority,
            tenant=arrival.tenant,
            tenant_weight=arrival.tenant_weight,
            cache_salt=str(arrival.namespace),
            cache_bypass=arrival.cache_bypass,
            time_limit_at=arrival.time_limit_at if arrival.HasField("time_limit_at") else None,
            deadline_at=arrival.deadline_at if arrival.HasField("deadline_at") else None,
        )
        if arrival.prompt_logprobs_start:
            request.prompt_logprobs = PendingPromptLogprobs(LogprobOptions(), arrival.prompt_logprobs_start)
        request.start_sequences(arrival.n, self._delivered(number))
        if arrival.beam_width:
            replay_beams(
                request,
                num_results=arrival.num_beam_results,
                num_offers=arrival.num_beam_offers,
                make_search=partial(
                    ReplayedSearch,
                    choices=story.choices,
                    token_of=partial(self._beam_token, story),
                    hash_bytes=HASH_BYTES,
                ),
            )
        return request

    def _beam_token(self, story: Story, position: int, beam: int, block_hash: bytes | None) -> int:
        """See searches.TokenOf. A search that begins anew gets the same tokens again."""
        if block_hash is not None:
            return self._stand_in(block_hash)
        if not self._ends_block(len(story.prompt) + position):
            return _PLAIN
        return story.own.setdefault((position, beam), next(self._own))

    def _delivered(self, number: int) -> "dict[int, array[int]]":
        story = self._stories[number]
        lengths = {
            index: length for index, length in enumerate(unpack_u32(story.arrival.delivered)) if length
        }
        for index, length in lengths.items():
            self.token(number, index, length - 1)
        return {index: story.outputs[index][:length] for index, length in lengths.items()}

    def _tell(self, story: Story) -> None:
        """Finds the tokens of a request: of its prompt, then of each output."""
        arrival = story.arrival
        of_prompt = _by_block(arrival.block_hashes, 0)
        for end in story.ends.values():  # of the prompt all sequences say the same
            hashes = _by_block(end.block_hashes, end.first_block)
            whole = arrival.prompt_len // self._block_size
            of_prompt |= {block: its for block, its in hashes.items() if block < whole}
        story.prompt = unpack_u32_array(arrival.prompt_token_ids)
        if not self._has_tokens:
            story.prompt = self._stand_ins(of_prompt, 0, arrival.prompt_len)
        for index in range(arrival.n):
            end = story.ends.get(index) or _end_of_delivery(arrival, index)
            output = unpack_u32_array(end.output_token_ids)
            if not self._has_tokens:
                hashes = of_prompt | _by_block(end.block_hashes, end.first_block)
                output = self._stand_ins(hashes, arrival.prompt_len, end.num_output_tokens)
            story.outputs.append(output)
            if index in story.ends:
                self._note_last_token(story, end, output)

    def _stand_ins(self, hashes: dict[int, bytes], start: int, length: int) -> "array[int]":
        """Tokens for so many positions of a sequence."""
        tokens = array("I", bytes(4 * length))
        size = self._block_size
        for block in range(start // size, (start + length) // size):
            tokens[(block + 1) * size - 1 - start] = self._stand_in(hashes.get(block))
        return tokens

    def _stand_in(self, block_hash: bytes | None) -> int:
        """The last token of a block: one for each hash; of an unknown one, a new one."""
        if block_hash is None:
            return next(self._own)
        if block_hash not in self._by_hash:
            self._by_hash[block_hash] = next(self._own)
        return self._by_hash[block_hash]

    def _note_last_token(self, story: Story, end: RecordedEnd, output: "array[int]") -> None:
        """The token that ended the sequence must end it again, and be in no other place."""
        reason = end.reason or (FinishReason.STOP if self._as_far else FinishReason.NONE)
        if not reason or not output:
            return
        if output[-1] == _PLAIN or (self._has_tokens and self._as_far):
            output[-1] = next(self._own)
        story.last_tokens.add((reason, output[-1]))

    def _ends_block(self, position: int) -> bool:
        return position % self._block_size == self._block_size - 1


def _end_of_delivery(arrival: RecordedArrival, index: int) -> RecordedEnd:
    """What is known of a sequence whose end the recording has not: what it came with."""
    if not arrival.deliveries:
        return RecordedEnd()
    return RecordedEnd(
        num_output_tokens=unpack_u32(arrival.delivered)[index],
        block_hashes=arrival.deliveries[index].block_hashes,
        first_block=len(arrival.block_hashes) // HASH_BYTES,
        output_token_ids=arrival.deliveries[index].token_ids,
    )


def _by_block(column: bytes, first: int) -> dict[int, bytes]:
    """Hashes by block."""
    size = HASH_BYTES
    return {first + i // size: column[i : i + size] for i in range(0, len(column), size)}
