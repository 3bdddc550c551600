"""Outputs since the last message, collected in columns; one message per frontend."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import NamedTuple

from engine_core.request import FinishReason, Request, Sequence
from engine_core.scheduler.outputs.wait_causes import NO_WAITS, Pause
from pagewire.internal.v1 import engine_pb2
from pagewire.internal.v1.engine_pb2 import LogprobColumns
from pagewire.ipc.columns import pack_u8, pack_u32, pack_u64
from pagewire.ipc.logprob_columns import join, num_tokens, pick


class Start(NamedTuple):
    """A request was scheduled for the first time."""

    request: Request
    queued: float  # seconds
    num_cached_tokens: int  # of the prompt
    waits: tuple[float, ...] = NO_WAITS  # seconds of `queued`, by cause


class Scores(NamedTuple):
    """Log-probabilities of all tokens of some entries."""

    entries: list[int]  # of each token
    columns: LogprobColumns


class PromptPart(NamedTuple):
    """Log-probabilities of a part of a request's prompt."""

    request: Request
    start: int
    columns: LogprobColumns


class Vector(NamedTuple):
    """The vector of a request that pools."""

    request: Request
    values: bytes  # float32 column


RowDraft = tuple[int, int]
"""How many tokens were drafted for a row in a step, and by which DraftMethod of engine.proto."""
NO_DRAFT: RowDraft = (0, 0)


@dataclass(slots=True)
class Outputs:
    """S sequences progressed. Tokens of entry i follow those of entry i - 1 in token_ids."""

    sequences: list[Sequence] = field(default_factory=list)  # [S]
    positions: list[int] = field(default_factory=list)  # [S]
    counts: list[int] = field(default_factory=list)  # [S]
    token_ids: list[int] = field(default_factory=list)  # [sum of counts]
    finishes: dict[int, tuple[FinishReason, int]] = field(default_factory=dict)  # entry -> reason, token
    drafts: dict[int, RowDraft] = field(default_factory=dict)  # entry -> its draft, where there was one
    started: list[Start] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)  # their entries ascend
    prompt_parts: list[PromptPart] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    vectors: list[Vector] = field(default_factory=list)  # their sequences have finishes

    def __bool__(self) -> bool:
        return bool(self.sequences or self.started or self.prompt_parts or self.pauses)

    def add_tokens(self, sequences: list[Sequence], token_ids: list[int]) -> int:
        """Adds one token for each sequence, before the sequences take them; returns the first entry."""
        first = len(self.sequences)
        self.sequences += sequences
        self.positions += [len(sequence.output) for sequence in sequences]
        self.counts += [1] * len(sequences)
        self.token_ids += token_ids
        return first

    def add_run(self, sequence: Sequence, position: int, draft: RowDraft) -> int:
        """Adds the tokens of a sequence's output from `position` on; returns the index of the entry.

        draft: what was drafted from there on.
        """
        entry = len(self.sequences)
        token_ids = sequence.output[position:]
        if draft != NO_DRAFT:
            self.drafts[entry] = draft
        self.sequences.append(sequence)
        self.positions.append(position)
        self.counts.append(len(token_ids))
        self.token_ids += token_ids
        return entry

    def add_scores(
        self, first: int, planned: list[Sequence], sampled: Many[int], columns: LogprobColumns
    ) -> None:
        """Adds log-probabilities of tokens whose entries are `first` and later.

        sampled: tokens of each planned sequence; empty: 1 each. columns: of all tokens of the planned
        sequences that want them, also of tokens and sequences that have no entry.
        """
        entries = {sequence: first + i for i, sequence in enumerate(self.sequences[first:])}
        columns_at: list[int] = []
        found: list[int] = []
        column = 0
        for sequence, count in zip(planned, sampled or [1] * len(planned), strict=True):
            if sequence.request.parameters.logprobs is None:
                continue
            entry = entries.get(sequence)
            if entry is not None:
                taken = min(count, self.counts[entry])
                columns_at += range(column, column + taken)
                found += [entry] * taken
            column += count
        assert column == num_tokens(columns)
        if columns_at:
            self.scores.append(Scores(found, pick(columns, columns_at)))

    def add_prompt_part(self, request: Request, start: int, columns: LogprobColumns) -> None:
        """Adds log-probabilities of a request's prompt from position `start` on."""
        self.prompt_parts.append(PromptPart(request, start, columns))

    def finish(self, sequence: Sequence, reason: FinishReason, token: int = 0) -> None:
        """Adds the end of a sequence without another token."""
        self.finishes[len(self.sequences)] = reason, token
        self.sequences.append(sequence)
        self.positions.append(len(sequence.output))
        self.counts.append(0)

    def add_vector(self, sequence: Sequence, values: bytes) -> None:
        """Adds the vector of a sequence, which ends it."""
        self.vectors.append(Vector(sequence.request, values))
        self.finish(sequence, FinishReason.STOP)

    def finish_group(self, request: Request, results: list[array[int]], reason: FinishReason) -> None:
        """Adds the results of a request, the best first, with all their tokens.

        reason: NONE when the request has finished by itself. Otherwise every result ends for this reason,
        also one whose own end was reached: a better one might have been found.
        """
        for sequence, output in zip(request.sequences, results, strict=False):
            self.finishes[len(self.sequences)] = (reason, 0) if reason else request.ending(output)
            self.sequences.append(sequence)
            self.positions.append(0)
            self.counts.append(len(output))
            self.token_ids += output


def encode_outputs(outputs: Outputs, epoch: int, step: int) -> Iterator[tuple[bytes, engine_pb2.StepOutputs]]:
    """Yields one message for each frontend that has outputs."""
    for frontend, part in _by_frontend(outputs).items():
        num_entries = len(part.sequences)
        message = engine_pb2.StepOutputs(
            epoch=epoch,
            step=step,
            handles=pack_u64([sequence.request.handle for sequence in part.sequences]),
            indexes=pack_u32([sequence.index for sequence in part.sequences]),
            positions=pack_u32(part.positions),
            counts=pack_u32(part.counts),
            token_ids=pack_u32(part.token_ids),
            finish_reasons=bytes(num_entries),
            finish_token_ids=bytes(4 * num_entries),
        )
        if part.finishes:
            _put_finishes(message, part)
        if part.drafts:
            drafts = [part.drafts.get(entry, NO_DRAFT) for entry in range(num_entries)]
            message.draft_counts = pack_u32([count for count, _ in drafts])
            message.draft_methods = bytes(method for _, method in drafts)
        if part.started:
            _put_started(message, part.started)
        if part.pauses:
            message.paused_handles = pack_u64([pause.request.handle for pause in part.pauses])
            message.paused_us = pack_u32([_microseconds(pause.seconds) for pause in part.pauses])
        _put_logprobs(message, part)
        for request, values in part.vectors:
            message.vectors.add(handle=request.handle, values=values)
        yield frontend, message


def _put_finishes(message: engine_pb2.StepOutputs, part: Outputs) -> None:
    reasons = bytearray(len(part.sequences))
    matched = [0] * len(part.sequences)
    for entry, (reason, token) in part.finishes.items():
        reasons[entry], matched[entry] = reason, token
    message.finish_reasons, message.finish_token_ids = pack_u8(reasons), pack_u32(matched)


def _put_started(message: engine_pb2.StepOutputs, started: list[Start]) -> None:
    message.started_handles = pack_u64([start.request.handle for start in started])
    message.started_queue_us = pack_u32([_microseconds(start.queued) for start in started])
    message.started_cached_tokens = pack_u32([start.num_cached_tokens for start in started])
    if any(any(start.waits) for start in started):
        message.started_waits_us = pack_u32(
            [_microseconds(each) for start in started for each in start.waits]
        )


def _put_logprobs(message: engine_pb2.StepOutputs, part: Outputs) -> None:
    if part.scores:
        has = bytearray(len(part.sequences))
        for scores in part.scores:
            for entry in scores.entries:
                has[entry] = 1
        message.has_logprobs = bytes(has)
        message.logprobs.CopyFrom(join([scores.columns for scores in part.scores]))
    for request, start, columns in part.prompt_parts:
        message.prompt_logprobs.add(handle=request.handle, start=start, columns=columns)


def _by_frontend(outputs: Outputs) -> dict[bytes, Outputs]:
    """Splits the outputs by frontend, in order; not copied when there is only one frontend."""
    frontends = {sequence.request.frontend: None for sequence in outputs.sequences}
    frontends |= {start.request.frontend: None for start in outputs.started}
    frontends |= {part.request.frontend: None for part in outputs.prompt_parts}
    frontends |= {pause.request.frontend: None for pause in outputs.pauses}
    if len(frontends) == 1:
        return {next(iter(frontends)): outputs}
    parts = {frontend: Outputs() for frontend in frontends}
    entries = []  # [S] index of each entry in its part
    token = 0
    for entry, sequence in enumerate(outputs.sequences):
        part = parts[sequence.request.frontend]
        count = outputs.counts[entry]
        if entry in outputs.finishes:
            part.finishes[len(part.sequences)] = outputs.finishes[entry]
        if entry in outputs.drafts:
            part.drafts[len(part.sequences)] = outputs.drafts[entry]
        entries.append(len(part.sequences))
        part.sequences.append(sequence)
        part.positions.append(outputs.positions[entry])
        part.counts.append(count)
        part.token_ids += outputs.token_ids[token : token + count]
        token += count
    for start in outputs.started:
        parts[start.request.frontend].started.append(start)
    for pause in outputs.pauses:
        parts[pause.request.frontend].pauses.append(pause)
    for prompt_part in outputs.prompt_parts:
        parts[prompt_part.request.frontend].prompt_parts.append(prompt_part)
    for vector in outputs.vectors:
        parts[vector.request.frontend].vectors.append(vector)
    for scores in outputs.scores:
        _split_scores(scores, outputs.sequences, entries, parts)
    return parts


def _split_scores(
    scores: Scores, sequences: list[Sequence], indexes: list[int], parts: dict[bytes, Outputs]
) -> None:
    """sequences: [S]; indexes: [S] of each entry in its part."""
    tokens: dict[bytes, list[int]] = {}
    for token, entry in enumerate(scores.entries):
        tokens.setdefault(sequences[entry].request.frontend, []).append(token)
    for frontend, own in tokens.items():
        entries = [indexes[scores.entries[token]] for token in own]
        parts[frontend].scores.append(Scores(entries, pick(scores.columns, own)))


def _microseconds(seconds: float) -> int:
    return min(max(round(seconds * 1e6), 0), 0xFFFFFFFF)
