"""Executes step plans on any backend: the order of the contract, and all bookkeeping of the host.

    media is forgotten and encoded     follow
    rows and block tables change       apply_changes, append_tokens
    blocks move                        swap, copy_blocks
    inputs are made, the model runs    read_step, upload, forward
    prompts are scored                 prompt_logprobs
    rows that pool read their states   sampled_states, row_states, chosen_logits
    beams offer candidates             beam_candidates
    the other rows sample              sample

A plan with room for drafts has them made before its inputs, and verified by sampling (worker.speculation).

A plan with room for several tokens is a burst where nothing drafts: its steps are launched one by one.

A device that computes by itself may still be busy with earlier steps while a later one is launched.
"""

from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from kernels.ops.attention.ragged import Integers
from kernels.wanted import Wanted
from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.ipc.logprob_columns import join, pick
from worker.executor.backend import Backend, LaunchClock, SampledTokens, StepOutputs
from worker.executor.pending_step import PendingStep, Rest
from worker.grammar.matcher import Matcher
from worker.kv_transfer.transfer import BlockTransfer
from worker.loop import never
from worker.pooling.rows import PoolRows
from worker.pooling.stages import AnyHead
from worker.sampling.logprobs.messages import LogprobRequests
from worker.speculation.speculator import Speculator, StepDrafts
from worker.step.beams import BeamRows
from worker.step.plan_reader import (
    NoAdapters,
    NoMedia,
    RowStops,
    Step,
    append_tokens,
    apply_changes,
    block_copies,
    read_step,
    read_swaps,
    steps_of_burst,
)
from worker.step.rows import PlanError, RowTable, column

B = TypeVar("B", bound=Backend)


class AdapterLoader(Protocol):
    """The adapters of a worker."""

    def load(self, order: worker_pb2.LoadAdapter) -> "Future[worker_pb2.AdapterLoaded]":
        """Loads an adapter in a thread. Returns the answer to come."""

    def drop(self, digest: bytes) -> None:
        """Forgets an adapter."""

    @property
    def loaded(self) -> Sequence[worker_pb2.AdapterLoaded]:
        """Those that are held, without numbers."""


Mask = npt.NDArray[np.bool_]
Sample = Callable[[Integers, Integers], SampledTokens]
"""Samples for entries [N] of the step's sample_rows from these of its logits [N], and appends the tokens to
the rows. The host knows the tokens."""


class Rounds:
    """Tokens that entries of a step's sample_rows [A] get at one position after the other."""

    def __init__(self, num_entries: int) -> None:
        self._rounds: list[tuple[list[int], SampledTokens]] = []  # entries that sampled at the next position
        self.counts: Integers = np.zeros(num_entries, np.int64)
        """[A] tokens that each entry has got."""

    def add(self, entries: Integers, sampled: SampledTokens) -> None:
        """Adds the next position of these entries [N]. The host knows the tokens."""
        self._rounds.append((entries.tolist(), sampled))
        self.counts[entries] += 1

    def result(self, scored: Container[int]) -> SampledTokens:
        """Returns all tokens, entry after entry. scored: entries that request log-probabilities."""
        owners = np.concatenate([np.array(entries, np.int64) for entries, _ in self._rounds])
        sampled = np.concatenate([sampled.host_tokens for _, sampled in self._rounds])
        tokens: Integers = sampled[np.argsort(owners, kind="stable")]
        return SampledTokens(tokens, lambda: tokens, lambda: self._logprobs(scored))

    def _logprobs(self, scored: Container[int]) -> engine_pb2.LogprobColumns | None:
        found: list[tuple[int, engine_pb2.LogprobColumns]] = []
        for entries, sampled in self._rounds:
            columns = sampled.logprobs()
            if columns is not None:
                members = [entry for entry in entries if entry in scored]
                found += [(entry, pick(columns, [index])) for index, entry in enumerate(members)]
        found.sort(key=lambda pair: pair[0])
        return join([columns for _, columns in found]) if found else None


class Verification:
    """Samples at one position after the other, and goes on while the token is the drafted one.

    Each position is sampled as if it were the only one of its step: with the row's history up to there, its
    penalties and masks, its log-probabilities, and the random number of (seed, sequence index, position). So
    the tokens are those that single steps sample from the same logits, whatever was drafted. A: entries of
    the step's sample_rows.
    """

    def __init__(self, drafts: list[list[int]], num_logits: Integers) -> None:
        """drafts: [A] drafted tokens. num_logits: [A] logits of each entry, one behind the other."""
        self._drafts = drafts
        self.first: Integers = np.cumsum(num_logits) - num_logits
        """[A] the first of each entry's logits."""
        self.rounds = Rounds(len(num_logits))

    def sample(self, entries: Integers, sample: Sample) -> None:
        """Samples for these entries [N] until each has a token that was not drafted."""
        position = 0
        while len(entries):
            sampled = sample(entries, self.first[entries] + position)
            self.rounds.add(entries, sampled)
            samples = zip(entries.tolist(), sampled.host_tokens.tolist(), strict=True)
            accepted = [entry for entry, token in samples if self._accepts(entry, position, token)]
            entries = np.array(accepted, np.int64)
            position += 1

    def _accepts(self, entry: int, position: int, token: int) -> bool:
        return self._drafts[entry][position : position + 1] == [token]


class StepExecutor(Generic[B]):
    """Runs plans against a row table and a backend. A worker.loop.StepRunner."""

    def __init__(
        self,
        rows: RowTable,
        backend: B,
        max_num_batched_tokens: int,
        speculator: Speculator | None = None,
        adapters: AdapterLoader | None = None,
        heads: Mapping[int, AnyHead] = MappingProxyType({}),
    ) -> None:
        """speculator: drafts, for a backend that knows tokens at launch. None: nothing is drafted. adapters:
        loads them; None: none can be loaded (ModelFacts.adapters_caveat). heads: of rows that pool, by
        number."""
        self.rows, self.backend = rows, backend
        self._speculator, self._adapters = speculator, adapters
        self._max_num_batched_tokens = max_num_batched_tokens
        self._logprobs = LogprobRequests(rows.vocab_size)
        self._beams = BeamRows(rows.max_num_rows, rows.vocab_size)
        self._pooling, self._stops = PoolRows(heads), RowStops()
        drafted = (self._stops,) if speculator is None else speculator.features
        refusing = (
            *([NoAdapters()] if adapters is None else ()),
            *([NoMedia()] if backend.media is None else ()),
        )
        kept = self._logprobs, self._beams, self._pooling
        self._features = (*backend.features, *kept, *drafted, *refusing)
        self._pending: deque[PendingStep] = deque()
        self.transfer: BlockTransfer | None = None
        """Of blocks from and to other workers, where there is one."""

    def launch(self, plan: worker_pb2.StepPlan, is_interrupted: Callable[[], bool] = never) -> None:
        """Launches a plan. Raises PlanError when it does not fit the rows."""
        pending = PendingStep(plan.step)
        if plan.sample_counts and self._speculator is None:
            self._burst(plan, pending, is_interrupted)
        else:
            self._launch(plan, pending)
        self._pending.append(pending)

    def _burst(
        self, plan: worker_pb2.StepPlan, pending: PendingStep, is_interrupted: Callable[[], bool]
    ) -> None:
        """Launches steps until a row may have ended, or has no token."""
        rows = column(plan.sample_rows)
        entries, rounds = np.arange(len(rows)), Rounds(len(rows))
        for plan_of_step in steps_of_burst(plan):
            step = PendingStep(plan.step)
            self._launch(plan_of_step, step)
            sampled = pending.add_step(step)
            rounds.add(entries, sampled)
            tokens = zip(rows.tolist(), sampled.host_tokens.tolist(), strict=True)
            if is_interrupted() or any(token < 0 or self._stops.may_end(row, token) for row, token in tokens):
                break
        pending.add_sampled(rounds.result(self._scored(rows)))
        pending.add_counts(rounds.counts)

    def _launch(self, plan: worker_pb2.StepPlan, pending: PendingStep) -> None:
        clock = LaunchClock()
        repeated = self.backend.repeat(plan, clock) if self._speculator is None else None
        if repeated is not None:
            pending.add_sampled(repeated)
            pending.complete_with(self.backend.submit(clock))
            return
        with self.backend.step(plan):
            if (plan.encode or plan.forgotten_media) and self._follow_media(plan):
                clock.mark_encoded()
            apply_changes(plan, self.rows, self._features)
            appended, token_ids = append_tokens(plan, self.rows)
            self.backend.update_rows(plan, appended, token_ids)
            self._move_blocks(plan)
            if plan.rows:
                self._compute(plan, clock, pending)
            if pending.rest is None:
                pending.complete_with(self.backend.submit(clock))

    @property
    def drafts(self) -> bool:
        """Whether plans may have room for drafts."""
        return self._speculator is not None

    @property
    def head_sizes(self) -> list[int]:
        """ModelFacts.head_sizes."""
        return self._pooling.head_sizes

    def seconds_left(self) -> float | None:
        return self._pending[0].seconds_left(len(self._pending) > 1) if self._pending else None

    def awaits(self, plan: worker_pb2.StepPlan) -> bool:
        begun = [pending.rest for pending in self._pending if pending.rest is not None]
        return any(not rest.allows(plan, len(begun)) for rest in begun)

    def finish(self) -> worker_pb2.StepResult:
        return self._pending.popleft().result()

    def compile_grammar(self, grammar: str) -> "Future[Matcher]":
        return self.backend.grammars.compile(grammar)

    @property
    def takes_adapters(self) -> bool:
        """Whether rows may have adapters."""
        return self._adapters is not None

    def load_adapter(self, order: worker_pb2.LoadAdapter) -> "Future[worker_pb2.AdapterLoaded]":
        if self._adapters is not None:
            return self._adapters.load(order)
        refused: Future[worker_pb2.AdapterLoaded] = Future()
        refused.set_result(worker_pb2.AdapterLoaded(number=order.number, problem="this worker takes none"))
        return refused

    def drop_adapter(self, digest: bytes) -> None:
        if self._adapters is not None:
            self._adapters.drop(digest)

    @property
    def held_adapters(self) -> Sequence[worker_pb2.AdapterLoaded]:
        return () if self._adapters is None else self._adapters.loaded

    def abandon(self) -> None:
        """Blocks keep what they hold, and nothing is written to them any more. What is encoded is
        forgotten."""
        if self.transfer is not None:
            self.transfer.stop_all()
        while self._pending:
            self.finish()
        rows = np.flatnonzero(self.rows.num_tokens).tolist()
        self.execute(worker_pb2.StepPlan(removed_rows=pack_u32(rows)))
        if self.backend.media is not None:
            self.backend.media.forget_media()

    def execute(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        """Runs one step to its end, with no other step in flight."""
        self.launch(plan)
        return self.finish()

    def _follow_media(self, plan: worker_pb2.StepPlan) -> bool:
        """Returns whether memory has sufficed: if not, the time that encoding took says nothing."""
        if self.backend.media is None:
            raise PlanError("an item is to be encoded, and nothing encodes")
        return self.backend.media.follow(plan)

    def _move_blocks(self, plan: worker_pb2.StepPlan) -> None:
        """Copies blocks to host memory, back from there, then within the cache."""
        swaps = read_swaps(plan, self.rows.cache_blocks, self.backend.num_host_blocks)
        if swaps:
            self.backend.swap(swaps)
        sources, targets = block_copies(plan, self.rows.cache_blocks)
        if len(sources):
            self.backend.copy_blocks(sources, targets)
        if self._speculator is not None:
            self._speculator.move_blocks(swaps, sources, targets)

    def _compute(self, plan: worker_pb2.StepPlan, clock: LaunchClock, pending: PendingStep) -> None:
        """Launches model and sampling."""
        backend, speculator = self.backend, self._speculator
        drafts = speculator.make_drafts(plan) if speculator is not None else None
        step = read_step(plan, self.rows, self._max_num_batched_tokens, backend.plan_check, drafts)
        backend.upload(step, self._wanted(step.sample_rows))
        clock.mark_uploaded()
        begun = backend.begin() if plan.micro_batch else None
        outputs = backend.forward() if begun is None else None
        clock.mark_forwarded()
        self.rows.finish_step(step.rows, step.starts + step.counts)
        if outputs is not None:
            self._read(outputs, step, drafts, pending)
            return

        def finish() -> None:
            with backend.step(plan):
                assert begun is not None
                self._read(begun.outputs(), step, drafts, pending)
                pending.complete_with(backend.submit(clock))

        rows, sampled = (frozenset(each.tolist()) for each in (step.rows, step.sample_rows))
        assert begun is not None
        pending.rest = Rest(begun, rows, sampled, int(step.counts.sum()), finish)

    def _read(
        self, outputs: StepOutputs, step: Step, drafts: StepDrafts | None, pending: PendingStep
    ) -> None:
        """Samples, and takes what else is wanted of the outputs of a step."""
        backend, speculator = self.backend, self._speculator
        parts = self._logprobs.prompt_parts(step.rows, step.starts, step.counts)
        if parts:
            pending.add_prompts(outputs.prompt_logprobs(parts))
        pooled = self._pooling.pool(outputs, step)
        if pooled is not None:
            pending.add_pooled(pooled)
        mask = None if pooled is None or not pooled.mask.any() else pooled.mask
        if drafts is not None:
            self._verify(outputs, step.sample_rows, drafts, mask, pending)
        elif len(step.sample_rows):
            self._sample(outputs, step.sample_rows, mask, pending)
        if speculator is not None:
            pending.next_draft_counts = speculator.next_counts(step.sample_rows)
        if len(step.sample_rows):
            pending.add_errors(backend.grammars.errors(step.sample_rows.tolist()))
            if backend.media is not None and backend.media.failed:
                pending.add_failed(np.isin(step.sample_rows, list(backend.media.failed)))

    def _wanted(self, rows: Integers) -> Wanted:
        """Returns what is read of the rows [A] that sample: logits, if one is a beam, pools them or requests
        log-probabilities."""
        scored = self._pooling.any_logits(rows)
        if not scored and self._pooling.all_in(rows):
            return Wanted.STATES
        scored = scored or self._logprobs.any_in(rows) or self._beams.any_in(rows)
        return Wanted.LOGITS if scored else Wanted.TOKENS

    def _sample(
        self, outputs: StepOutputs, rows: Integers, pooled: Mask | None, pending: PendingStep
    ) -> None:
        """Samples for the rows [A]; beams among them give candidates instead. pooled: [A] which have a vector
        instead; None: no row."""
        if pooled is None and not self._beams.any_in(rows):
            pending.add_sampled(self._sample_tokens(outputs, rows, None))
            return
        beams = self._beams.mask(rows)
        if beams.any():
            self._offer(outputs, rows, beams, np.flatnonzero(beams), pending)
        others = np.flatnonzero(~beams if pooled is None else ~(beams | pooled))
        if len(others):
            pending.add_sampled(self._sample_tokens(outputs, rows[others], others))

    def _offer(
        self, outputs: StepOutputs, rows: Integers, beams: Mask, index: Integers, pending: PendingStep
    ) -> None:
        """Gives the candidates of the beams [B] among rows [A]. index: see StepOutputs.beam_candidates."""
        counts = self._beams.counts(rows[beams])
        candidates = outputs.beam_candidates(rows[beams], index, int(counts.max()))
        pending.add_candidates(beams, counts, candidates)

    def _verify(
        self,
        outputs: StepOutputs,
        rows: Integers,
        drafts: StepDrafts,
        pooled: Mask | None,
        pending: PendingStep,
    ) -> None:
        """Samples for the rows [A] of a step with drafts. pooled: see _sample()."""
        assert self._speculator is not None
        drafts.take_back(rows, self.rows)
        beams = self._beams.mask(rows)
        verification = Verification(drafts.tokens, drafts.num_logits)
        if beams.any():
            self._offer(outputs, rows, beams, verification.first[beams], pending)
        verification.sample(
            np.flatnonzero(~beams if pooled is None else ~(beams | pooled)),
            lambda entries, index: self._sample_tokens(outputs, rows[entries], index),
        )
        self._speculator.judge(rows, drafts, verification.rounds.counts)
        pending.add_sampled(verification.rounds.result(self._scored(rows)))
        pending.add_counts(np.maximum(verification.rounds.counts, 1))
        pending.add_drafts(
            drafts.num_logits - 1,
            self._speculator.methods(rows, drafts),
            self._speculator.computed_prompts,
        )

    def _scored(self, rows: Integers) -> set[int]:
        """Returns the entries of rows [A] that request log-probabilities."""
        return {entry for entry, row in enumerate(rows.tolist()) if row in self._logprobs.sampled}

    def _sample_tokens(self, outputs: StepOutputs, rows: Integers, index: Integers | None) -> SampledTokens:
        """Samples for rows [N] and appends the tokens. index: see StepOutputs.sample."""
        sampled = outputs.sample(rows, index, self._logprobs.sampled)
        self.rows.append(rows, np.maximum(sampled.host_tokens, 0))
        return sampled
