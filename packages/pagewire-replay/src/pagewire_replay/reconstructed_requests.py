"""Reconstructs requests from a recording, so that a replay produces the same lengths, ends and prefix hits.

Where token ids are not recorded, other tokens stand for them: the last token of a block is a number of the
block's hash, so that blocks are equal where they were equal; the token that ended a sequence is a stop token
of its request; all others are 0. What a sequence would have generated beyond its recorded output is not
known: it continues with blocks that are equal to no others.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from engine_core.beam_search import BeamSearch
from engine_core.recording.recorder import COPIED
from engine_core.request import FinishReason, PendingPromptLogprobs, Request, RequestOwner
from engine_core.step.plan import AdapterUse, MediaItem, RowParameters
from pagewire.internal.v1.engine_pb2 import MEDIA_KIND_IMAGE, Pooling
from pagewire.internal.v1.recording_pb2 import RecordedCall, RecordedEvent
from pagewire.ipc.columns import unpack_u32, unpack_u32_array
from pagewire.v1.generation_pb2 import LogprobOptions, SamplingParams
from pagewire_replay.beams import Candidates, candidates_of, replayed_search
from pagewire_replay.reader import facts_of, read_hashes

_PLAIN = 0
_SOME_GRAMMAR = "?"
"""Stands for the grammar of a request, which is not recorded."""
_FIRST_FRESH = 1 << 31
"""The first made-up token: above every vocabulary."""


@dataclass(frozen=True, slots=True)
class RecordedOutput:
    """What is known of the output of a sequence."""

    num_tokens: int = 0
    reason: int = 0  # a FinishReason: why its last token ended it
    hashes: dict[int, bytes] = field(
        default_factory=dict
    )  # by block, of those behind the prompt's known ones
    token_ids: bytes = b""  # uint32 column, where token ids are recorded

    @classmethod
    def of(cls, event: RecordedEvent, facts: dict[str, Any]) -> "RecordedOutput":
        """Returns the output of a "delivered" or "ended"."""
        hashes = read_hashes(event.columns["hashes"], facts["first_block"])
        return cls(facts["num_output_tokens"], facts["reason"], hashes, event.columns["token_ids"])


@dataclass(slots=True)
class RecordedRequest:
    """One request: what is known of it when it arrives, and of its sequences."""

    number: int
    facts: dict[str, Any]
    hashes: dict[int, bytes]  # of blocks of the prompt
    prompt: "array[int]"
    delivered: dict[int, RecordedOutput] = field(default_factory=dict)  # by index
    ends: dict[int, RecordedOutput] = field(default_factory=dict)  # by index
    outputs: "list[array[int]]" = field(default_factory=list)  # by index
    choices: dict[int, tuple[list[int], dict[int, bytes]]] = field(default_factory=dict)
    """Of a beam search, by the length of the beams before: parents of the beams that go on, and hashes of the
    blocks that these have filled."""
    fresh: dict[tuple[int, int], int] = field(default_factory=dict)  # (position, beam) -> made-up token
    last_tokens: set[tuple[int, int]] = field(default_factory=set)  # (reason, token) that ends a sequence

    @property
    def n(self) -> int:
        """Sequences."""
        return int(self.facts["n"])

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return int(self.facts["prompt_len"])

    def num_tokens(self, index: int) -> int:
        """Returns the tokens (prompt and output) that a sequence had, or could have had."""
        end = self.ends.get(index)
        if end is not None and end.num_tokens:
            return self.prompt_len + end.num_tokens
        return min(self.prompt_len + int(self.facts["max_tokens"]), int(self.facts["max_model_len"]))

    def output_of(self, index: int) -> RecordedOutput:
        """Returns the output of a sequence; of one whose end is not recorded what it arrived with."""
        return self.ends.get(index) or self.delivered.get(index) or RecordedOutput()


class ReconstructedRequests:
    """All requests of a recording, by number."""

    def __init__(
        self,
        calls: Iterable[RecordedCall],
        *,
        block_size: int,
        has_tokens: bool,
        ends_by_length: bool = False,
    ) -> None:
        """ends_by_length: each sequence ends where it ended when recorded, also if by an abort."""
        self.block_size = block_size
        self.has_tokens = has_tokens
        self._ends_by_length = ends_by_length
        self._fresh_tokens = count(_FIRST_FRESH)
        self._by_hash: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}  # the same the other way around
        self._requests: dict[int, RecordedRequest] = {}
        for call in calls:
            if call.HasField("event"):
                self._take(call.event)
        for recorded in self._requests.values():
            self._reconstruct_tokens(recorded)

    def __getitem__(self, number: int) -> RecordedRequest:
        return self._requests[number]

    def __iter__(self) -> Iterator[RecordedRequest]:
        return iter(self._requests.values())

    def token(self, number: int, index: int, position: int) -> int:
        """Returns the token of a sequence at a position of its output."""
        recorded = self._requests[number]
        output, first = recorded.outputs[index], len(recorded.prompt)
        while len(output) <= position:
            output.append(next(self._fresh_tokens) if self._ends_block(first + len(output)) else _PLAIN)
        return output[position]

    def request(self, number: int) -> Request:
        """Returns a new request that is what the recorded one was on arrival; its handle is its number."""
        recorded = self._requests[number]
        facts = recorded.facts
        eos, stop = (
            frozenset(token for why, token in recorded.last_tokens if why == reason)
            for reason in (FinishReason.EOS, FinishReason.STOP)
        )
        adapter = facts.get("adapter", "")
        request = Request(
            frontend=b"",
            handle=number,
            request_id=str(number),
            prompt=recorded.prompt,
            parameters=RowParameters(
                SamplingParams(n=recorded.n),
                0 if self._ends_by_length else facts["min_tokens"],
                (),
                (),
                grammar=_SOME_GRAMMAR if facts["has_grammar"] else "",
                pooling=Pooling(type=facts["pooling_type"]) if facts["pooling_type"] else None,
                adapter=AdapterUse("", "", bytes.fromhex(adapter), 0) if adapter else None,
                media=tuple(map(_media_item, facts.get("media", ()))),
            ),
            eos_token_ids=eos,
            stop_token_ids=stop,
            key=facts["suspect"],
            cache_salt=facts.get("namespace", ""),
            content_hashes={
                int(at): bytes.fromhex(each) for at, each in facts.get("content_hashes", {}).items()
            },
            beam_search=replayed_search(facts),
            num_vector_values=facts.get("num_vector_values", 0),
            owner=RequestOwner(abort_at=facts["deadline_at"]),
            **{name: facts[name] for name in COPIED},
        )
        if facts["prompt_logprobs_start"]:
            request.prompt_logprobs = PendingPromptLogprobs(LogprobOptions(), facts["prompt_logprobs_start"])
        for index, output in recorded.delivered.items():
            self.token(number, index, output.num_tokens - 1)
        delivered = {
            index: recorded.outputs[index][: output.num_tokens]
            for index, output in recorded.delivered.items()
        }
        request.start_sequences(recorded.n, delivered)
        return request

    def beam_candidates(self, number: int, search: BeamSearch) -> list[Candidates]:
        """Returns candidates of each beam from which a request's search chooses as it did when recorded."""
        recorded = self._requests[number]
        parents, hashes = recorded.choices.get(search.length, ([], {}))

        def token_of(position: int, beam: int) -> int:
            if beam in hashes:
                return self._stand_in(hashes[beam])
            if not self._ends_block(len(recorded.prompt) + position):
                return _PLAIN
            # A search that begins again gets the same tokens again.
            return recorded.fresh.setdefault((position, beam), next(self._fresh_tokens))

        return candidates_of(search, parents, token_of)

    def sequences(self, recorded: RecordedRequest) -> "Iterator[tuple[array[int], dict[int, bytes]]]":
        """Yields the tokens of each sequence of a request, prompt and output, and the hashes of its blocks,
        as far as these are recorded."""
        of_prompt = self._hashes_of_prompt(recorded)
        for index, output in enumerate(recorded.outputs):
            yield recorded.prompt + output, of_prompt | recorded.output_of(index).hashes

    def hash_of(self, token: int) -> bytes | None:
        """Returns the hash of the block whose last token this one stands for; None: it is another token."""
        return self._hashes.get(token)

    def _take(self, event: RecordedEvent) -> None:
        facts, columns = facts_of(event), event.columns
        if event.name == "add":
            prompt = unpack_u32_array(columns["token_ids"])
            hashes = read_hashes(columns["hashes"])
            self._requests[event.number] = RecordedRequest(event.number, facts, hashes, prompt)
        elif event.name == "delivered":
            self._requests[event.number].delivered[facts["index"]] = RecordedOutput.of(event, facts)
        elif event.name == "ended":
            self._requests[event.number].ends[facts["index"]] = RecordedOutput.of(event, facts)
        elif event.name == "chosen":
            choice = unpack_u32(columns["parents"]), read_hashes(columns["hashes"])
            self._requests[event.number].choices[facts["length"]] = choice

    def _reconstruct_tokens(self, recorded: RecordedRequest) -> None:
        """Makes the tokens of a request: of its prompt, then of each output."""
        of_prompt = self._hashes_of_prompt(recorded)
        if not self.has_tokens:
            recorded.prompt = self._stand_ins(of_prompt, 0, recorded.prompt_len)
        for index in range(recorded.n):
            known = recorded.output_of(index)
            output = unpack_u32_array(known.token_ids)
            if not self.has_tokens:
                output = self._stand_ins(of_prompt | known.hashes, recorded.prompt_len, known.num_tokens)
            recorded.outputs.append(output)
            if index in recorded.ends:
                self._note_last_token(recorded, known.reason, output)

    def _hashes_of_prompt(self, recorded: RecordedRequest) -> dict[int, bytes]:
        """Returns the hashes of the prompt's whole blocks, as far as they are known: all sequences have the
        same prompt."""
        whole, known = recorded.prompt_len // self.block_size, dict(recorded.hashes)
        for end in recorded.ends.values():
            known |= {block: content for block, content in end.hashes.items() if block < whole}
        return known

    def _stand_ins(self, hashes: dict[int, bytes], start: int, length: int) -> "array[int]":
        """Returns tokens for `length` positions of a sequence. hashes: by block."""
        tokens = array("I", bytes(4 * length))
        size = self.block_size
        for block in range(start // size, (start + length) // size):
            tokens[(block + 1) * size - 1 - start] = self._stand_in(hashes.get(block))
        return tokens

    def _stand_in(self, block_hash: bytes | None) -> int:
        """Returns the last token of a block: one token per hash, a new one where the hash is not known."""
        if block_hash is None:
            return next(self._fresh_tokens)
        if block_hash not in self._by_hash:
            token = self._by_hash[block_hash] = next(self._fresh_tokens)
            self._hashes[token] = block_hash
        return self._by_hash[block_hash]

    def _note_last_token(self, recorded: RecordedRequest, reason: int, output: "array[int]") -> None:
        """Makes the token that ended a sequence a stop token, which occurs nowhere else."""
        reason = reason or (FinishReason.STOP if self._ends_by_length else FinishReason.NONE)
        if not reason or not output:
            return
        if output[-1] == _PLAIN or (self.has_tokens and self._ends_by_length):
            output[-1] = next(self._fresh_tokens)
        recorded.last_tokens.add((reason, output[-1]))

    def _ends_block(self, position: int) -> bool:
        return position % self.block_size == self.block_size - 1


def _media_item(recorded: list[Any]) -> MediaItem:
    """Returns an item of media without data. recorded: what stands for its digest, then its positions."""
    digest, *positions = recorded
    return MediaItem(MEDIA_KIND_IMAGE, (), b"", bytes.fromhex(digest), array("I", positions))
