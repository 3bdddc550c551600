"""The result of one step: the worker's answer to a plan, checked against the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

from engine_core.step.plan import Plan
from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire.ipc.columns import unpack_f32, unpack_u32
from pagewire.ipc.logprob_columns import check
from pagewire.speculation import METHOD_NAMES

TokenLogprobs = Sequence[tuple[int, float]]
"""Tokens with their log-probabilities, the most likely first, of equals the lower token first."""


NO_ERRORS: Mapping[int, str] = MappingProxyType({})
NO_VECTORS: Mapping[int, bytes] = MappingProxyType({})


class Draft(NamedTuple):
    """A draft of one row, and what became of it."""

    method: str  # a METHOD_NAME
    num_tokens: int
    num_accepted: int


class Result(NamedTuple):
    """The result of one plan. Fields are those of StepResult in worker.proto; A: the plan's sample_rows."""

    step: int
    token_ids: list[int]  # [sum of sample_counts]
    duration_us: int = 0
    prepare_us: int = 0
    forward_us: int = 0
    sample_us: int = 0
    encode_us: int = 0
    started_ns: int = 0  # on the machine's monotonic clock
    logprobs: engine_pb2.LogprobColumns | None = None
    prompt_logprobs: Sequence[worker_pb2.RowPromptLogprobs] = ()
    beam_token_ids: Sequence[int] = ()
    beam_logprobs: Sequence[float] = ()
    sample_counts: Sequence[int] = ()  # [A]; empty: 1 each
    draft_counts: Sequence[int] = ()  # [A]; empty: none
    next_draft_counts: Sequence[int] = ()  # [A]; empty: none
    draft_prefill: bool = False
    draft_methods: bytes = b""  # [A] DraftMethods of engine.proto; empty: nothing was drafted
    vectors: Mapping[int, bytes] = NO_VECTORS  # entry of sample_rows that pools -> float32 column
    row_errors: Mapping[int, str] = NO_ERRORS  # why entries of sample_rows have no token

    @property
    def num_accepted_drafts(self) -> int:
        """Drafted tokens that are among token_ids: all of an entry but the last one."""
        return sum(self.sample_counts) - len(self.sample_counts)

    def row_drafts(self) -> list[tuple[int, int]]:
        """Returns for each of the plan's sample_rows [A] how many tokens were drafted, and by which
        DraftMethod; empty: nothing was drafted."""
        methods = self.draft_methods or bytes(len(self.draft_counts))
        return list(zip(self.draft_counts, methods, strict=True))

    def drafts(self) -> Iterator[Draft]:
        """Yields the drafts of the step, those of at least a token."""
        if not self.draft_counts:
            return
        taken = self.sample_counts or [1] * len(self.draft_counts)
        for (drafted, method), count in zip(self.row_drafts(), taken, strict=True):
            if drafted:
                yield Draft(METHOD_NAMES.get(method, "unspecified"), drafted, count - 1)

    def entries_with(self, token: int) -> list[int]:
        """Entries of sample_rows that got this token."""
        if self.sample_counts:
            return [entry for entry, tokens in enumerate(self.tokens_by_row()) if token in tokens]
        return [entry for entry, sampled in enumerate(self.token_ids) if sampled == token]

    def tokens_by_row(self) -> list[list[int]]:
        """[A] the tokens of each of the plan's sample_rows."""
        if not self.sample_counts:
            return [[token] for token in self.token_ids]
        ends = list(accumulate(self.sample_counts))
        return [
            self.token_ids[end - count : end] for end, count in zip(ends, self.sample_counts, strict=True)
        ]


def decode_result(message: worker_pb2.StepResult, plan: Plan) -> Result:
    """Decodes a message. Raises ValueError when it is not a result of this plan."""
    result = Result(
        step=message.step,
        token_ids=unpack_u32(message.token_ids),
        duration_us=message.duration_us,
        prepare_us=message.prepare_us,
        forward_us=message.forward_us,
        sample_us=message.sample_us,
        encode_us=message.encode_us,
        started_ns=message.started_ns,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        prompt_logprobs=message.prompt_logprobs,
        beam_token_ids=unpack_u32(message.beam_token_ids) if message.beam_token_ids else (),
        beam_logprobs=unpack_f32(message.beam_logprobs) if message.beam_logprobs else (),
        sample_counts=unpack_u32(message.sample_counts) if message.sample_counts else (),
        draft_counts=unpack_u32(message.draft_counts) if message.draft_counts else (),
        next_draft_counts=unpack_u32(message.next_draft_counts) if message.next_draft_counts else (),
        draft_prefill=message.draft_prefill,
        draft_methods=message.draft_methods,
        vectors={each.entry: each.values for each in message.vectors} or NO_VECTORS,
        row_errors={error.entry: error.message for error in message.row_errors} or NO_ERRORS,
    )
    num_tokens = sum(result.sample_counts) if result.sample_counts else len(plan.sample_rows)
    if result.step != plan.step or len(result.token_ids) != num_tokens:
        raise ValueError(
            f"step {plan.step} with {num_tokens} samples was answered by"
            f" step {result.step}, {len(result.token_ids)} tokens"
        )
    if result.sample_counts:
        _check_sample_counts(result.sample_counts, plan)
    if max(result.vectors, default=-1) >= len(plan.sample_rows):
        raise ValueError(f"step {plan.step}: a vector for an entry beyond {len(plan.sample_rows)} rows")
    for name in ("draft_counts", "next_draft_counts", "draft_methods"):
        column = getattr(result, name)
        if column and len(column) != len(plan.sample_rows):
            raise ValueError(f"step {plan.step}: {len(column)} {name} for {len(plan.sample_rows)} rows")
    if result.logprobs is not None:
        check(result.logprobs)
    for part in result.prompt_logprobs:
        check(part.columns)
    if len(result.beam_token_ids) != len(result.beam_logprobs):
        raise ValueError(
            f"step {plan.step}: {len(result.beam_token_ids)} candidates of beams,"
            f" {len(result.beam_logprobs)} log-probabilities"
        )
    return result


def _check_sample_counts(counts: Sequence[int], plan: Plan) -> None:
    planned = plan.sample_counts or [1] * len(plan.sample_rows)
    if len(counts) != len(planned) or not all(map(_is_allowed, counts, planned)):
        raise ValueError(f"step {plan.step}: {list(counts)} tokens were sampled, of {planned} planned")


def _is_allowed(count: int, planned: int) -> bool:
    return 1 <= count <= planned
