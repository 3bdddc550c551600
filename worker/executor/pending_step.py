"""A launched step, or several of a burst: what the result is made of once the device is done.

Everything that the result needs of rows is taken at launch: the next plan may be launched before the result
is read, and may remove them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32, unpack_u32
from worker.executor.backend import BegunStep, Completion, Deferred, SampledTokens
from worker.pooling.rows import PooledStep
from worker.pooling.vectors import Floats
from worker.step.beams import NO_TOKEN, BeamCandidates, write_candidates
from worker.step.plan_reader import token_column

_LOOK_S = 0.001


@dataclass(frozen=True)
class Rest:
    """What is left of a micro-batch, when other stages have computed it."""

    begun: BegunStep
    rows: frozenset[int]
    """That compute."""
    sampled: frozenset[int]
    """That sample: of these rows, and of those that have forked from one of them in this step."""
    tokens: int
    finish: Callable[[], None]

    def allows(self, plan: worker_pb2.StepPlan, num_begun: int) -> bool:
        """Returns whether a plan may begin before. num_begun: steps that have."""
        if not plan.micro_batch or num_begun >= self.begun.most_begun:
            return False
        if max(self.tokens, sum(unpack_u32(plan.counts))) > self.begun.room:
            return False  # a stage would wait for this one, and this one for it
        changed = {*unpack_u32(plan.removed_rows), *unpack_u32(plan.append_rows)}
        changed |= {new.row for new in plan.new_rows} | {fork.row for fork in plan.forks}
        return (self.rows | self.sampled).isdisjoint(changed) and self.sampled.isdisjoint(
            unpack_u32(plan.rows)
        )


class PendingStep:
    """One step between launch and result. A: rows that sample, B: beams among them."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._sampled: SampledTokens | None = None
        self._beams: npt.NDArray[np.bool_] | None = None  # [A]; None: no beam is among the rows
        self._beam_counts: Integers | None = None  # [B]
        self._candidates: Deferred[BeamCandidates] | None = None
        self._pooled: PooledStep | None = None
        self._errors: Mapping[int, str] = {}
        self._failed: npt.NDArray[np.bool_] | None = None  # [A]; None: no row
        self._prompts: Deferred[Iterable[worker_pb2.RowPromptLogprobs]] | None = None
        self._completions: list[Completion] = []  # of a burst, one for each step
        self._sample_counts: Integers | None = None  # [A]; None: 1 each
        self._draft_counts: Integers | None = None  # [A]; None: none
        self._draft_methods, self._draft_prefill = b"", False
        self.rest: Rest | None = None
        """None: all is launched."""
        self.next_draft_counts: Sequence[int] = ()
        """[A] tokens that would be drafted for the rows now; empty: none."""

    def add_prompts(self, prompts: Deferred[Iterable[worker_pb2.RowPromptLogprobs]]) -> None:
        """Adds log-probabilities of prompts."""
        self._prompts = prompts

    def add_sampled(self, sampled: SampledTokens) -> None:
        """Adds the tokens of the rows that are no beams."""
        self._sampled = sampled

    def add_candidates(
        self, beams: npt.NDArray[np.bool_], counts: Integers, candidates: Deferred[BeamCandidates]
    ) -> None:
        """Adds candidates of beams. beams: [A] which rows are beams; counts: [B] candidates of each."""
        self._beams, self._beam_counts, self._candidates = beams, counts, candidates

    def add_pooled(self, pooled: PooledStep) -> None:
        """Adds the vectors of rows that pool."""
        self._pooled = pooled

    def add_step(self, step: "PendingStep") -> SampledTokens:
        """Adds a step of a burst. Returns its tokens: all rows have sampled."""
        assert step._sampled is not None
        self._completions += step._completions
        return step._sampled

    def add_counts(self, sample_counts: Integers) -> None:
        """Adds how many tokens each of the rows [A] got."""
        self._sample_counts = sample_counts

    def add_drafts(self, draft_counts: Integers, methods: list[int], computed_prompts: bool) -> None:
        """Adds how many tokens were drafted for each of the rows [A], and by what.

        computed_prompts: whether a draft model did.
        """
        self._draft_counts = draft_counts
        self._draft_methods, self._draft_prefill = bytes(methods), computed_prompts

    def add_errors(self, errors: Mapping[int, str]) -> None:
        """Adds why rows have no token, by index into the sampled rows."""
        self._errors = errors

    def add_failed(self, failed: npt.NDArray[np.bool_]) -> None:
        """Adds which of the rows [A] have no token, as after NaN: the model could not read their prompts."""
        self._failed = failed

    def complete_with(self, completion: Completion) -> None:
        """Adds what tells that the step is done."""
        self._completions.append(completion)

    def seconds_left(self, followed: bool) -> float:
        if self.rest is not None:
            return 0.0 if self.rest.begun.has_arrived else _LOOK_S
        return self._completions[-1].seconds_left(followed)

    def result(self) -> worker_pb2.StepResult:
        """Blocks until all is done and returns the result."""
        if self.rest is not None:
            self.rest.finish()
        times = [completion.wait() for completion in self._completions]
        result = worker_pb2.StepResult(
            step=self._step,
            started_ns=times[0].started_ns,
            duration_us=sum(each.duration_us for each in times),
            prepare_us=sum(each.prepare_us for each in times),
            forward_us=sum(each.forward_us for each in times),
            sample_us=sum(each.sample_us for each in times),
            encode_us=sum(each.encode_us for each in times),
        )
        for entry, message in self._errors.items():
            result.row_errors.add(entry=entry, message=message)
        if self._prompts is not None:
            result.prompt_logprobs.extend(self._prompts())
        vectors = self._pooled.vectors() if self._pooled is not None else []
        if self._beams is not None or vectors:
            result.token_ids = token_column(self._without_failed(self._mixed_tokens(vectors, result)))
        elif self._sampled is not None:
            result.token_ids = token_column(self._without_failed(self._sampled.tokens()))
        if self._sampled is not None:
            columns = self._sampled.logprobs()
            if columns is not None:
                result.logprobs.CopyFrom(columns)
        self._write_draft_counts(result)
        return result

    def _without_failed(self, tokens: Integers) -> Integers:
        """Returns tokens [sum of sample counts] but for those of rows that have failed."""
        if self._failed is None:
            return tokens
        counts = 1 if self._sample_counts is None else self._sample_counts
        return np.where(np.repeat(self._failed, counts), NO_TOKEN, tokens)

    def _write_draft_counts(self, result: worker_pb2.StepResult) -> None:
        if self._sample_counts is not None:
            result.sample_counts = token_column(self._sample_counts)
        if self._draft_counts is not None:
            result.draft_counts = token_column(self._draft_counts)
            result.draft_methods, result.draft_prefill = self._draft_methods, self._draft_prefill
        if self.next_draft_counts:
            result.next_draft_counts = pack_u32(self.next_draft_counts)

    def _mixed_tokens(
        self, vectors: list[tuple[int, Floats | None]], result: worker_pb2.StepResult
    ) -> npt.NDArray[np.int64]:
        """Returns tokens [sum of sample counts]; writes candidates of beams and vectors into the result.

        vectors: of entries of sample_rows that pool.
        """
        pooled = self._pooled.mask if self._pooled is not None else None
        beams = self._beams
        masks = [mask for mask in (beams, pooled) if mask is not None]
        sampled = ~np.logical_or.reduce(masks)
        tokens = np.zeros(len(sampled), np.int64)
        for entry, vector in vectors:
            if vector is None:
                tokens[entry] = NO_TOKEN
            else:
                result.vectors.add(entry=entry, values=vector.astype("<f4").tobytes())
        if beams is not None:
            assert self._candidates is not None and self._beam_counts is not None
            tokens[beams] = write_candidates(self._candidates(), self._beam_counts, result)
        if self._sample_counts is not None:
            tokens, sampled = (np.repeat(each, self._sample_counts) for each in (tokens, sampled))
        if self._sampled is not None:
            tokens[sampled] = self._sampled.tokens()
        return tokens
