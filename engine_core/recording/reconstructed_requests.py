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

from engine_core.beam_search.search import BeamSearch
from engine_core.recording.beams import HASH_BYTES, Candidates, candidates_of, replayed_search
from engine_core.request import MAX_DRAFTS, FinishReason, PendingPromptLogprobs, Request, RequestOwner
from engine_core.step.plan import RowParameters
from pagewire.internal.v1.engine_pb2 import Pooling, PoolingType
from pagewire.internal.v1.recording_pb2 import RecordedArrival, RecordedCall, RecordedChoice, RecordedEnd
from pagewire.ipc.columns import unpack_u32, unpack_u32_array
from pagewire.v1.generation_pb2 import LogprobOptions, SamplingParams

_PLAIN = 0
_SOME_GRAMMAR = "?"
"""Stands for the grammar of a request, which is not recorded."""
_FIRST_FRESH = 1 << 31
"""The first made-up token: above every vocabulary."""


@dataclass(slots=True)
class RecordedRequest:
    """One request: its arrival, and what is known of its sequences."""

    arrival: RecordedArrival
    ends: dict[int, RecordedEnd] = field(default_factory=dict)  # by index
    prompt: "array[int]" = field(default_factory=lambda: array("I"))
    outputs: "list[array[int]]" = field(default_factory=list)  # by index
    choices: dict[int, RecordedChoice] = field(default_factory=dict)  # of a beam search, by length
    fresh: dict[tuple[int, int], int] = field(default_factory=dict)  # (position, beam) -> made-up token
    last_tokens: set[tuple[int, int]] = field(default_factory=set)  # (reason, token) that ends a sequence

    def num_tokens(self, index: int) -> int:
        """Returns the tokens (prompt and output) that a sequence had, or could have had."""
        arrival, end = self.arrival, self.ends.get(index)
        if end is not None and end.num_output_tokens:
            return arrival.prompt_len + end.num_output_tokens
        return min(arrival.prompt_len + arrival.max_tokens, arrival.max_model_len)


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
            if call.HasField("arrival"):
                arrival = RecordedArrival()
                arrival.CopyFrom(call.arrival)  # a part of a chunk would keep all of it in memory
                self._requests[arrival.number] = RecordedRequest(arrival)
            elif call.HasField("end"):
                end = RecordedEnd()
                end.CopyFrom(call.end)
                self._requests[end.number].ends[end.index] = end
            for choice in call.result.choices:
                copy = RecordedChoice()
                copy.CopyFrom(choice)
                self._requests[copy.number].choices[copy.length] = copy
        for recorded in self._requests.values():
            self._reconstruct_tokens(recorded)

    def __getitem__(self, number: int) -> RecordedRequest:
        return self._requests[number]

    def __iter__(self) -> Iterator[RecordedRequest]:
        return iter(self._requests.values())

    def numbers(self) -> list[int]:
        """Returns the numbers of all requests."""
        return list(self._requests)

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
        arrival = recorded.arrival
        eos, stop = (
            frozenset(token for why, token in recorded.last_tokens if why == reason)
            for reason in (FinishReason.EOS, FinishReason.STOP)
        )
        min_tokens = 0 if self._ends_by_length else arrival.min_tokens
        request = Request(
            frontend=b"",
            handle=number,
            request_id=str(number),
            prompt=recorded.prompt,
            parameters=RowParameters(
                SamplingParams(n=arrival.n),
                min_tokens,
                (),
                (),
                grammar=_SOME_GRAMMAR if arrival.has_grammar else "",
                pooling=_pooling(arrival),
            ),
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
            max_drafts=arrival.max_draft_tokens if arrival.HasField("max_draft_tokens") else MAX_DRAFTS,
            time_limit_at=arrival.time_limit_at if arrival.HasField("time_limit_at") else None,
            deadline_at=arrival.deadline_at if arrival.HasField("deadline_at") else None,
            owner=RequestOwner(abort_at=arrival.deadline_at if arrival.HasField("deadline_at") else None),
            beam_search=replayed_search(arrival),
        )
        if arrival.prompt_logprobs_start:
            request.prompt_logprobs = PendingPromptLogprobs(LogprobOptions(), arrival.prompt_logprobs_start)
        request.start_sequences(arrival.n, self._delivered(number))
        return request

    def beam_candidates(self, number: int, search: BeamSearch) -> list[Candidates]:
        """Returns candidates of each beam from which a request's search chooses as it did when recorded."""
        recorded = self._requests[number]

        def token_of(position: int, beam: int, block_hash: bytes | None) -> int:
            if block_hash is not None:
                return self._stand_in(block_hash)
            if not self._ends_block(len(recorded.prompt) + position):
                return _PLAIN
            # A search that begins again gets the same tokens again.
            return recorded.fresh.setdefault((position, beam), next(self._fresh_tokens))

        return candidates_of(search, recorded.choices.get(search.length), token_of)

    def sequences(self, number: int) -> "Iterator[tuple[array[int], dict[int, bytes]]]":
        """Yields the tokens of each sequence of a request, prompt and output, and the hashes of its blocks,
        as far as these are recorded."""
        recorded = self._requests[number]
        of_prompt = _hashes_of_prompt(recorded, self.block_size)
        for index, output in enumerate(recorded.outputs):
            end = _end_of(recorded, index)
            yield recorded.prompt + output, of_prompt | hashes_of_blocks(end.block_hashes, end.first_block)

    def hash_of(self, token: int) -> bytes | None:
        """Returns the hash of the block whose last token this one stands for; None: it is another token."""
        return self._hashes.get(token)

    def _delivered(self, number: int) -> "dict[int, array[int]]":
        recorded = self._requests[number]
        lengths = {
            index: length for index, length in enumerate(unpack_u32(recorded.arrival.delivered)) if length
        }
        for index, length in lengths.items():
            self.token(number, index, length - 1)
        return {index: recorded.outputs[index][:length] for index, length in lengths.items()}

    def _reconstruct_tokens(self, recorded: RecordedRequest) -> None:
        """Makes the tokens of a request: of its prompt, then of each output."""
        arrival = recorded.arrival
        of_prompt = _hashes_of_prompt(recorded, self.block_size)
        recorded.prompt = unpack_u32_array(arrival.prompt_token_ids)
        if not self.has_tokens:
            recorded.prompt = self._stand_ins(of_prompt, 0, arrival.prompt_len)
        for index in range(arrival.n):
            end = _end_of(recorded, index)
            output = unpack_u32_array(end.output_token_ids)
            if not self.has_tokens:
                hashes = of_prompt | hashes_of_blocks(end.block_hashes, end.first_block)
                output = self._stand_ins(hashes, arrival.prompt_len, end.num_output_tokens)
            recorded.outputs.append(output)
            if index in recorded.ends:
                self._note_last_token(recorded, end, output)

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

    def _note_last_token(self, recorded: RecordedRequest, end: RecordedEnd, output: "array[int]") -> None:
        """Makes the token that ended the sequence a stop token, which occurs nowhere else."""
        reason = end.reason or (FinishReason.STOP if self._ends_by_length else FinishReason.NONE)
        if not reason or not output:
            return
        if output[-1] == _PLAIN or (self.has_tokens and self._ends_by_length):
            output[-1] = next(self._fresh_tokens)
        recorded.last_tokens.add((reason, output[-1]))

    def _ends_block(self, position: int) -> bool:
        return position % self.block_size == self.block_size - 1


def _pooling(arrival: RecordedArrival) -> Pooling | None:
    """Returns how a request pools, as far as scheduling depends on it; None: it generates."""
    kind = PoolingType.Name(arrival.pooling_type) if arrival.pooling_type else None
    return None if kind is None else Pooling(type=kind)


def _hashes_of_prompt(recorded: RecordedRequest, block_size: int) -> dict[int, bytes]:
    """Returns the hashes of the prompt's whole blocks, as far as they are known: all sequences have the same
    prompt."""
    arrival = recorded.arrival
    whole, known = arrival.prompt_len // block_size, hashes_of_blocks(arrival.block_hashes, 0)
    for end in recorded.ends.values():
        hashes = hashes_of_blocks(end.block_hashes, end.first_block)
        known |= {block: content for block, content in hashes.items() if block < whole}
    return known


def _end_of(recorded: RecordedRequest, index: int) -> RecordedEnd:
    """Returns the end of a sequence; of one whose end is not recorded the output that it arrived with."""
    arrival = recorded.arrival
    if index in recorded.ends:
        return recorded.ends[index]
    if not arrival.deliveries:
        return RecordedEnd()
    return RecordedEnd(
        num_output_tokens=unpack_u32(arrival.delivered)[index],
        block_hashes=arrival.deliveries[index].block_hashes,
        first_block=len(arrival.block_hashes) // HASH_BYTES,
        output_token_ids=arrival.deliveries[index].token_ids,
    )


def hashes_of_blocks(column: bytes, first: int) -> dict[int, bytes]:
    """Returns the hashes of a column by block. first: the block of the first one."""
    size = HASH_BYTES
    return {first + i // size: column[i : i + size] for i in range(0, len(column), size)}
