"""The CPU as a backend of the step executor: every method has done its work when it returns."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import torch

from kernels.api import (
    BlockInputs,
    BlockKernels,
    CacheLayout,
    KVCacheSpec,
    RepeatedStep,
    SamplingColumns,
    Spans,
    StepBatch,
    StepCheck,
)
from kernels.ops.attention.ragged import Integers
from kernels.wanted import Wanted
from pagewire.internal.v1 import worker_pb2
from worker.adapters.rows import AdapterRows
from worker.config.audio import AudioConfig
from worker.cpu.fused_decoder.decoder import FusedDecoder
from worker.cpu.memory_retry import compute_in_pieces, sampled_positions
from worker.cpu.step_repeater import StepRepeater
from worker.executor.backend import (
    BegunStep,
    Completion,
    Deferred,
    LaunchClock,
    Media,
    SampledTokens,
    StepOutputs,
    StepTimes,
)
from worker.memory.kv_cache import KVCache
from worker.memory.row_states import RowStates, layer_caches
from worker.memory.swap_space import SwapSpace
from worker.model_input import build_input_batch
from worker.models.base import LanguageModel
from worker.pooling.vectors import States
from worker.sampling.logprobs.messages import LogprobCandidates, PromptPart
from worker.sampling.logprobs.scores import PromptScores, SampledScores
from worker.sampling.sampler import Sampler
from worker.step.beams import BeamCandidates
from worker.step.embeddings import EmbeddingRows
from worker.step.exhaustion import is_out_of_memory
from worker.step.grid_positions import GridPositionRows
from worker.step.media import EncodedItems
from worker.step.plan_reader import PlanCheck, RowFeature, Step, Swaps
from worker.step.rows import RowTable
from worker.step.token_types import TokenTypeRows
from worker.step.whole_media import WholeMediaRows

log = logging.getLogger(__name__)
Observe = Callable[[Step, StepBatch], None]
"""Called with a step, or a piece of one, that the model has computed."""
BuildInputs = Callable[[Step, Wanted], StepBatch]
"""Called with a step and what is wanted of its sampled rows, see InputBatch."""


def input_builder(
    rows: RowTable,
    specs: Sequence[KVCacheSpec],
    layout: CacheLayout,
    kernels: BlockKernels | None,
    has_states: bool = False,
    columns: SamplingColumns | None = None,
) -> BuildInputs:
    """Returns the function that makes the inputs of a runner's steps. specs: one per layer. kernels: what
    reads and writes the cache; None: torch. has_states: other layers keep a state per row. columns: see
    BlockInputs."""
    kinds = tuple(dict.fromkeys(specs))
    if kernels is not None:
        tables = rows.token_ids, rows.blocks, rows.prompt_lens
        return BlockInputs(*tables, kinds, kernels, has_states, columns)

    def build(step: Step, wanted: Wanted) -> StepBatch:
        work = step.rows, step.starts, step.counts, step.sample_sources
        batch = replace(build_input_batch(rows, *work, kinds, layout, has_states), wanted=wanted)
        return batch if step.num_logits is None else batch.with_all_positions(step.num_logits)

    return build


class CpuBackend:
    """Model, KV cache and sampler on the CPU. A worker.executor.backend.Backend."""

    def __init__(
        self,
        model: LanguageModel,
        cache: KVCache,
        swap_space: SwapSpace,
        rows: RowTable,
        sampler: Sampler,
        kernels: BlockKernels | None = None,
        observe: Observe | None = None,
        states: RowStates | None = None,
        adapters: AdapterRows | None = None,
    ) -> None:
        """kernels: what reads and writes the cache; None: torch. observe: is called behind the model. states:
        of rows; None: no layer has one. adapters: of rows; None: no row has one."""
        self.model, self.cache, self.sampler = model, cache, sampler
        self.drafter_tensors: Sequence[torch.Tensor] = ()
        self.states = states
        self.adapters = adapters
        virtual_tokens = None if adapters is None else adapters.store.find_virtual_tokens
        vision = None if model.vision is None else model.vision.config
        num_vectors = 1 if vision is None else vision.vectors_per_position
        media = EncodedItems(model.vision, num_vectors, isinstance(vision, AudioConfig))
        self._embeddings = EmbeddingRows(cache.layout.dtype, virtual_tokens, media=media)
        self.media: Media | None = self._embeddings
        self._token_types = TokenTypeRows()
        self._grids = GridPositionRows(vision)
        self._whole_media = WholeMediaRows() if any(spec.whole_media for spec in cache.specs) else None
        kept = (
            *(sampler, self._embeddings, self._grids, self._whole_media, self._token_types),
            *(states, adapters),
        )
        self.features: Sequence[RowFeature] = [feature for feature in kept if feature is not None]
        self.grammars = sampler.grammars
        self.num_host_blocks = swap_space.num_blocks
        lengths = rows.num_tokens, rows.num_computed, rows.num_blocks
        sizes = rows.block_size, rows.max_model_len
        check = None if kernels is None else StepCheck(*lengths, *sizes)
        self.plan_check: PlanCheck | None = check
        self.swap_space, self._rows, self._observe = swap_space, rows, observe
        self._has_pieces = states is None and not any(spec.bidirectional for spec in cache.specs)
        self.may_retry = True
        """Whether a step for which memory does not suffice is computed in pieces. Not in a tensor-parallel
        group, whose other ranks may have enough of it."""
        self._caches = layer_caches(model, cache, states)
        has_states = states is not None
        layers = cache.specs, cache.layout, kernels, has_states
        self._build_inputs = input_builder(rows, *layers, sampler.columns)
        self._stage: FusedDecoder | None = None  # that computes micro-batches
        self._builders: deque[BuildInputs] = deque()
        if isinstance(model, FusedDecoder) and model.computes_micro_batches and observe is None:
            self._stage = model
            for _ in range(model.model.stage.count):  # steps that have begun keep their inputs
                self._builders.append(input_builder(rows, *layers, sampler.columns))
        self._repeater = self._make_repeater(check)
        self._plan: worker_pb2.StepPlan | None = None  # that is launched
        self._batch: StepBatch
        self._step: Step
        self._wanted = Wanted.STATES
        self._tokens_only = False
        self._num_retried = 0

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Blocks, their copies in host memory, states of rows, and the memory of a drafter."""
        states = self.states.tensors if self.states is not None else []
        return [*self.cache.pools, *self.swap_space.tensors, *states, *self.drafter_tensors]

    def step(self, plan: worker_pb2.StepPlan) -> AbstractContextManager[object]:
        self._plan = plan
        if self._repeater is not None:
            self._repeater.forget()
        return torch.inference_mode()

    def repeat(self, plan: worker_pb2.StepPlan, clock: LaunchClock) -> SampledTokens | None:
        return None if self._repeater is None else self._repeater.repeat(plan, clock)

    def _make_repeater(self, check: StepCheck | None) -> StepRepeater | None:
        """None where a step is more than the model's program, or its inputs are not compiled."""
        if self.states is not None or self._observe is not None or check is None:
            return None
        if not isinstance(self._build_inputs, BlockInputs) or not isinstance(self.model, FusedDecoder):
            return None
        return StepRepeater(self._rows, RepeatedStep(check, self._build_inputs), self._build_inputs)

    def remember(self, chosen: torch.Tensor | None) -> None:
        """The last step may be repeated, as far as its outputs say: all of it was computed at once, and all
        its rows have sampled. chosen: [A] int64, where the program leaves tokens; None: the sampler's."""
        if self._repeater is None or self._plan is None or not isinstance(self.model, FusedDecoder):
            return
        rows, logits = self._step.sample_rows.tolist(), self.model.logits_of_program
        if chosen is None and (logits is None or not self._tokens_only or self.grammars.users(rows)):
            return
        program = self.model.fixed_program(self._batch)
        if program is not None:

            def computed() -> torch.Tensor:
                assert logits is not None, "a rank without a head chooses no token"
                return logits

            def sample() -> Integers:
                if chosen is not None:
                    return self.sampler.take(chosen, rows, computed)
                tokens: Integers = self.sampler.sample(computed(), rows).numpy()
                return tokens

            columns = None if chosen is None else (chosen.numpy(), self.sampler.columns["position"])
            self._repeater.remember(self._plan, self._step, program, columns, sample)

    def update_rows(self, plan: worker_pb2.StepPlan, appended: list[int], token_ids: Integers) -> None:
        if appended:
            self.sampler.append(appended, torch.from_numpy(token_ids))
        if self.states is not None:
            self.states.begin(plan)

    def swap(self, swaps: Swaps) -> None:
        self.swap_space.execute(swaps)

    def copy_blocks(self, sources: Integers, targets: Integers) -> None:
        self.cache.copy_blocks(torch.from_numpy(sources), torch.from_numpy(targets))

    def upload(self, step: Step, wanted: Wanted) -> None:
        if self.states is not None:
            self.states.check(step)
        self._step = step
        self._tokens_only = wanted == Wanted.TOKENS
        elsewhere = step.num_logits is not None or step.has_forks
        if self._tokens_only and self.sampler.needs_logits(step.sample_rows, elsewhere):
            wanted = Wanted.LOGITS
        self._wanted = wanted
        self._embeddings.forget(step)
        self._batch = self._inputs(step, wanted)
        if self.states is not None and isinstance(self._batch.spans, Spans):
            self.states.mark(self._batch.spans)

    def _inputs(self, step: Step, wanted: Wanted) -> StepBatch:
        build = self._build_inputs
        if self._in_stages:
            self._builders.rotate(1)
            build = self._builders[0]
        batch = self._embeddings.put(step, build(step, wanted))
        batch = self._token_types.put(step, self._grids.put(step, batch))
        if self._whole_media is not None:
            batch = self._whole_media.put(step, batch)
        return batch if self.adapters is None else self.adapters.adapted(batch, step)

    @property
    def _in_stages(self) -> bool:
        """Whether the plan is a micro-batch that stages compute one after the other."""
        return self._stage is not None and self._plan is not None and self._plan.micro_batch

    @property
    def stages(self) -> int:
        """That compute micro-batches at the same time."""
        return 1 if self._stage is None else self._stage.model.stage.count

    def begin(self) -> BegunStep | None:
        if self._stage is None or not self._in_stages or self._stage.gets_tokens:
            return None
        self._begin(self._stage)
        return BegunOnCpu(self._stage, self.sampler, self._rows, self._batch)

    def _begin(self, stage: FusedDecoder) -> torch.Tensor:
        """Computes the layers of this stage. Returns its hidden states [T, E]."""
        hidden = stage.begin(self._batch, self._caches)
        if self.states is not None:
            self.states.finish(self._step)
        return hidden

    def forward(self) -> StepOutputs:
        """See Backend. A step for which memory does not suffice is computed in pieces, but for one that may
        have changed states already, and where tokens see those behind them."""
        if self._stage is not None and self._in_stages:
            return PassedOn(self._stage, self.sampler, self._rows, self._batch, self._begin(self._stage))
        try:
            hidden = self.compute(self._step, self._batch)
            return CpuOutputs(
                self.model, self.sampler, self._rows, self._batch, hidden, remember=self.remember
            )
        except (MemoryError, RuntimeError) as error:
            if not (self._may_cut() and self.may_retry) or not is_out_of_memory(error):
                raise
        self._num_retried += 1
        if self._num_retried.bit_count() == 1:  # 1, 2, 4, 8 ...
            log.warning(
                "memory does not suffice for a step, which is computed in pieces (%d)", self._num_retried
            )
        compute_in_pieces(self._step, self._forward)
        hidden = torch.empty(0)
        if len(self._step.sample_rows):
            sampled = sampled_positions(self._step)
            self._batch = self._inputs(sampled, self._wanted)
            hidden = self.compute(sampled, self._batch)
        return CpuOutputs(self.model, self.sampler, self._rows, self._batch, hidden, is_whole=False)

    def _may_cut(self) -> bool:
        """Whether the step may be computed in pieces."""
        whole = self._whole_media is not None and self._whole_media.computes(self._step)
        return self._has_pieces and not whole

    def compute(self, step: Step, batch: StepBatch) -> torch.Tensor:
        """Runs the model on a step, or a piece of one. Returns its hidden states [T, E]."""
        hidden = self.model.forward(batch, self._caches)  # without torch's search for hooks
        if self.states is not None:
            self.states.finish(step)
        if self._observe is not None:
            self._observe(step, batch)
        return hidden

    def _forward(self, piece: Step) -> None:
        self.compute(piece, self._inputs(piece, Wanted.STATES))

    def submit(self, clock: LaunchClock) -> Completion:
        return Completed(clock.times(clock.launched_ns, time.monotonic_ns()))


class CpuOutputs:
    """Hidden states of one step. A worker.executor.backend.StepOutputs."""

    def __init__(
        self,
        model: LanguageModel,
        sampler: Sampler,
        rows: RowTable,
        batch: StepBatch,
        hidden: torch.Tensor,
        *,
        is_whole: bool = True,
        remember: Callable[[torch.Tensor | None], None] = lambda chosen: None,
    ) -> None:
        """hidden: [T, E], of the batch. is_whole: the batch is all that the plan computes. remember: called
        when all rows have sampled, with the tokens [A] int64 that the model has chosen; None: it has not."""
        self._remember = remember
        self._is_whole = is_whole
        self._model, self._sampler, self._rows = model, sampler, rows
        self._batch, self._hidden = batch, hidden
        self._all_logits: torch.Tensor | None = None  # [A, V]

    def prompt_logprobs(
        self, parts: Sequence[PromptPart]
    ) -> Deferred[Iterable[worker_pb2.RowPromptLogprobs]]:
        """Raises MemoryError when the step was computed in pieces."""
        if not self._is_whole:
            raise MemoryError("log-probabilities of a prompt need a step that is computed as a whole")

        if self._model.gets_tokens:
            return lambda: ()

        def logits_of(tokens: Integers) -> torch.Tensor:
            index, adapters = torch.from_numpy(tokens), self._batch.adapters
            return self._model.logits(self._hidden[index], None if adapters is None else adapters.at(index))

        rows, scores = self._rows, PromptScores()
        scores.add(parts, self._batch.row_starts, rows.token_ids, logits_of, rows.vocab_size)
        scored = list(scores.columns())
        return lambda: scored

    def sample(
        self, rows: Integers, index: Integers | None, logprobs: Mapping[int, LogprobCandidates]
    ) -> SampledTokens:
        wants_tokens = self._batch.wanted == Wanted.TOKENS
        chosen = self._chosen_tokens() if wants_tokens else None
        if chosen is not None:
            of_rows = chosen if index is None else chosen[torch.from_numpy(index)]
            taken = self._sampler.take(of_rows, rows.tolist(), lambda: self._logits(index))
            if index is None:
                self._remember(chosen)
            return SampledTokens(taken, lambda: taken, lambda: None)
        scores = SampledScores(logprobs)
        tokens = self._sampler.sample(self._logits(index), rows.tolist(), scores).numpy()
        if index is None:
            self._remember(None)
        columns = scores.columns()
        return SampledTokens(tokens, lambda: tokens, lambda: columns)

    def beam_candidates(self, rows: Integers, index: Integers, count: int) -> Deferred[BeamCandidates]:
        ids, logprobs = self._sampler.beam_candidates(self._logits(index), rows.tolist(), count)
        candidates = BeamCandidates(ids.numpy(), logprobs.numpy())
        return lambda: candidates

    def sampled_states(self, index: Integers) -> States:
        places, tokens = torch.from_numpy(index), self._batch.logit_tokens
        states = self._hidden.index_select(0, places if tokens is None else tokens[places]).float().numpy()
        return lambda: states

    def chosen_logits(self, index: Integers, token_ids: Integers) -> States:
        logits = self._logits(index).gather(1, torch.from_numpy(token_ids)).float().numpy()
        return lambda: logits

    def row_states(self, entry: int, count: int) -> States:
        """Raises MemoryError when the step was computed in pieces."""
        if not self._is_whole:
            raise MemoryError("pooling all of a prompt needs a step that is computed as a whole")
        first = int(self._batch.row_starts[entry])
        states = self._hidden[first : first + count].to(torch.float32, copy=True).numpy()
        return lambda: states

    def _logits(self, index: Integers | None) -> torch.Tensor:
        """Returns the logits [N, V] of sampled rows. index: [N] which of them, copied; None: all."""
        if self._all_logits is None and self._model.gets_tokens:
            self._all_logits = torch.zeros(1, 1).expand(self._batch.num_logits, self._rows.vocab_size)
        if self._all_logits is None:
            self._all_logits = self._sampled_logits()
        return self._all_logits if index is None else self._all_logits[torch.from_numpy(index)]

    def _sampled_logits(self) -> torch.Tensor:
        return self._model.sampled_logits(self._hidden, self._batch)

    def _chosen_tokens(self) -> torch.Tensor | None:
        return self._model.chosen_tokens(self._hidden)


class PassedOn(CpuOutputs):
    """What a later stage has of a micro-batch: rank 0 alone learns the tokens, which no other layer reads."""

    def sample(
        self, rows: Integers, index: Integers | None, logprobs: Mapping[int, LogprobCandidates]
    ) -> SampledTokens:
        tokens = np.zeros(len(rows), np.int64)
        self._sampler.append(rows.tolist(), torch.from_numpy(tokens))
        return SampledTokens(tokens, lambda: tokens, lambda: None)


class EndedOutputs(CpuOutputs):
    """Those of a micro-batch at stage 0."""

    def __init__(self, model: FusedDecoder, sampler: Sampler, rows: RowTable, batch: StepBatch) -> None:
        """Waits for the last stage."""
        hidden, self._logits_of_program, self._tokens = model.end(batch)
        super().__init__(model, sampler, rows, batch, hidden)

    def sample(
        self, rows: Integers, index: Integers | None, logprobs: Mapping[int, LogprobCandidates]
    ) -> SampledTokens:
        with self._sampler.untold():
            return super().sample(rows, index, logprobs)

    def _sampled_logits(self) -> torch.Tensor:
        computed = self._logits_of_program
        return super()._sampled_logits() if computed is None else computed

    def _chosen_tokens(self) -> torch.Tensor | None:
        return self._tokens


class BegunOnCpu:
    """A worker.executor.backend.BegunStep."""

    def __init__(self, model: FusedDecoder, sampler: Sampler, rows: RowTable, batch: StepBatch) -> None:
        self.room, self.most_begun = model.message_tokens, model.model.stage.count
        self._group = model.model.stage.before
        self._parts = model, sampler, rows, batch

    @property
    def has_arrived(self) -> bool:
        """Raises RankGone."""
        return self._group.has_arrived()

    def outputs(self) -> StepOutputs:
        return EndedOutputs(*self._parts)


class Completed:
    """A worker.executor.backend.Completion of a step that is done."""

    def __init__(self, times: StepTimes) -> None:
        self._times = times

    def seconds_left(self, followed: bool) -> float:
        return 0.0

    def wait(self) -> StepTimes:
        return self._times
