"""A CUDA device as a backend of the step executor: steps are launched, their results come later."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import product

import numpy as np
import torch

from kernels.api import Spans, adapters
from kernels.ops.attention.ragged import Integers
from kernels.triton import requirements
from kernels.wanted import Wanted
from pagewire.internal.v1 import worker_pb2
from worker.adapters.rows import AdapterRows
from worker.cuda.device import Device, Event
from worker.cuda.graphs import Graphs
from worker.cuda.rows import DeviceRows
from worker.cuda.sampling.logprobs import LOGITS, score
from worker.cuda.sampling.row_parameters import ALIGNMENT
from worker.cuda.sampling.sampler import PLAIN, CudaSampler, Work
from worker.cuda.step_buffers import StepBuffers, StepLayout, StepShape
from worker.executor.backend import (
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
from worker.models.base import LanguageModel
from worker.pooling.vectors import States
from worker.sampling.logprobs.messages import LogprobCandidates, PromptPart
from worker.sampling.logprobs.scores import PromptScores, SampledScores
from worker.step.beams import BeamCandidates
from worker.step.embeddings import EmbeddingRows, StepValues
from worker.step.grid_positions import GridPositionRows
from worker.step.media import EncodedItems
from worker.step.plan_reader import PlanCheck, RowFeature, Step, Swaps
from worker.step.rows import RowTable
from worker.step.token_types import TokenTypeRows
from worker.step.whole_media import WholeMediaRows

POLL_S = 100e-6
"""Between two checks whether a step is done, while the core may still send the next one: a result is late by
half of it, and the device never waits for it."""


class CudaBackend:
    """Model, KV cache and sampler on a CUDA device. A worker.executor.backend.Backend.

    The host's rows are those of the executor, but for the tokens that rows sample: they stay on the device,
    where the next step reads them, and are copied to the host for the core alone.
    """

    check_ranks: Callable[[], None] | None = None
    """Raises RankGone where another rank has ended; None: there is none."""
    _adapted: adapters.StepAdapters | None = None
    """Of the step's tokens; None: none has an adapter."""

    def __init__(
        self,
        model: LanguageModel,
        cache: KVCache,
        swap_space: SwapSpace,
        rows: RowTable,
        sampler: CudaSampler,
        max_num_batched_tokens: int,
        device: Device,
        most_queries: int = 1,
        states: RowStates | None = None,
        adapters: AdapterRows | None = None,
        max_adapters: int = 0,
    ) -> None:
        """most_queries: tokens of a row that decodes. With more than 1 tokens are drafted, by what the host
        knows of rows: each step then waits for its tokens. states: of rows; None: no layer has one. adapters:
        of rows, at most max_adapters in a step; None: no row has one."""
        self.model, self.cache, self.sampler, self.device = model, cache, sampler, device
        self.states, self._caches = states, layer_caches(model, cache, states)
        self.adapters = adapters
        virtual_tokens = None if adapters is None else adapters.store.find_virtual_tokens
        vision = None if model.vision is None else model.vision.config
        media = EncodedItems(
            None if vision is None else self._encode, 1 if vision is None else vision.vectors_per_position
        )
        self._embeddings = EmbeddingRows(cache.layout.dtype, virtual_tokens, media=media, send=self._sent)
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
        self.plan_check: PlanCheck | None = None
        self.swap_space, self.rows = swap_space, rows
        self.device_rows = DeviceRows(rows, device)
        self.most_queries = most_queries
        tokens = max_num_batched_tokens
        kinds = cache.specs, most_queries, states is not None
        self.buffers = StepBuffers(
            *(rows, self.device_rows, device, tokens, *kinds),
            max_adapters=0 if adapters is None else max_adapters,
            adapted_parts=() if adapters is None else adapters.store.parts,
            has_token_types=model.has_token_types,
            has_grid_positions=self._grids.are_read,
        )
        self.bytes_per_block = cache.num_bytes // (cache.num_blocks + 1)
        self.graphs, self.adapted_graphs = Graphs(), Graphs()  # of steps without adapters, and with some
        self.sampling_graphs: dict[tuple[Work, bool], Graphs] = {}  # and whether adapters change the logits
        self._captured: torch.Tensor | None = None  # [rows, E] the hidden states of whichever graph ran last
        self._layout: StepLayout
        self._adapts_logits = False
        self._values: StepValues | None = None  # of the step, in place of tokens
        self._last_seen: torch.Tensor | None = None  # [T]: see InputBatch.with_last_seen()
        self._step: Step
        self._free_since_ns = time.monotonic_ns()

    def repeat(self, plan: worker_pb2.StepPlan, clock: LaunchClock) -> SampledTokens | None:
        """No step is shorter."""
        return None

    def step(self, plan: worker_pb2.StepPlan) -> AbstractContextManager[object]:
        return torch.inference_mode()

    def update_rows(self, plan: worker_pb2.StepPlan, appended: list[int], token_ids: Integers) -> None:
        self.device_rows.update(plan, appended)
        if appended:
            self.sampler.append(appended, self.device.send(token_ids))
            self.grammars.record(appended, lambda: token_ids)
        if self.states is not None:
            self.states.begin(plan)

    def swap(self, swaps: Swaps) -> None:
        self.swap_space.execute(swaps)

    def copy_blocks(self, sources: Integers, targets: Integers) -> None:
        for part in copy_parts(sources, targets, self.bytes_per_block):
            self.cache.copy_blocks(self.device.send(sources[part]), self.device.send(targets[part]))

    def upload(self, step: Step, wanted: Wanted) -> None:
        if step.num_logits is not None:
            self.device_rows.write_drafts(step)
        self._step, spans = step, None
        if self.states is not None:
            self.states.check(step)
            spans = Spans.empty(len(step.rows))
            spans.write(step.rows, step.starts, step.counts)
            self.states.mark(spans)
        self._layout = self.buffers.load(step, spans)
        starts = self._layout.row_starts
        self.buffers.load_token_types(self._token_types.of_step(starts, step), self._layout.shape.tokens)
        self.buffers.load_grid_positions(self._grids.of_step(starts, step))
        self._adapted = None if self.adapters is None else self.adapters.of_step(starts, step)
        if self._adapted is not None:
            self.buffers.adapters.load(self._adapted)
        of_logits = self.logit_adapters(self._layout.logit_tokens)
        self._adapts_logits = of_logits is not None
        if of_logits is not None:
            self.buffers.logit_adapters.load(of_logits)
        self._embeddings.forget(step)
        values = self._embeddings.of_step(starts, step)
        self._values = None if values is None else values.with_tokens_sent(self.device.send)
        last = None if self._whole_media is None else self._whole_media.of_step(starts, step)
        self._last_seen = None if last is None else self.device.send(last)

    def logit_adapters(self, tokens: Integers) -> adapters.StepAdapters | None:
        """Returns the adapters of tokens of the step [A], as rows of logits; None: none changes logits."""
        if (adapted := self._adapted) is None:
            return None
        number = self.model.head.number
        is_changed = number is not None and adapted.change(number)
        return adapted.at(torch.from_numpy(tokens).long()) if is_changed else None

    def forward(self) -> StepOutputs:
        is_adapted = self._adapted is not None
        graphs = self.adapted_graphs if is_adapted else self.graphs
        by_itself = self._values is not None or self._last_seen is not None
        graph = None if by_itself else graphs.find(self._layout.shape.tokens)
        hidden = self._forward(self._layout.shape, is_adapted) if graph is None else graph()
        self._values = self._last_seen = None
        if self.states is not None:
            self.states.finish(self._step)
        return CudaOutputs(self, self._layout, hidden, graph is not None, self._adapts_logits)

    def begin(self) -> None:
        """Stages of devices compute one step at a time."""

    def submit(self, clock: LaunchClock) -> Completion:
        return CudaCompletion(self, self.device.record(), clock)

    def completed(self, clock: LaunchClock) -> StepTimes:
        """Returns the times of the oldest step in flight, which the device has just completed."""
        started_ns, self._free_since_ns = max(clock.launched_ns, self._free_since_ns), time.monotonic_ns()
        return clock.times(started_ns, self._free_since_ns)

    @torch.inference_mode()
    def capture(self, size: int) -> None:
        """Captures a graph for steps of up to `size` tokens. One of that size has been executed before, if
        not of as many rows, and none of more tokens since.

        All graphs leave their hidden states in one buffer, so that none keeps memory of its own. So capture
        the largest first: it is run before, with as many rows as a graph has, which no other step has.
        """
        shape = self.buffers.graph_shape(size)
        if self._captured is None or self._captured.shape[0] < size:
            self._captured = torch.zeros_like(self._forward(shape))
        target = self._captured[:size]
        self.graphs.add(size, self.device.capture(lambda: target.copy_(self._forward(shape))))
        if self.adapters is not None:
            self.run_adapted(size)
            self.adapted_graphs.add(
                size, self.device.capture(lambda: target.copy_(self._forward(shape, True)))
            )

    @torch.inference_mode()
    def run_adapted(self, size: int) -> None:
        """Launches a step of up to `size` tokens with adapters, which compiles what adapts them: that of the
        columns on the device. Does nothing where no row has one."""
        if self.adapters is not None:
            self._forward(self.buffers.graph_shape(size), True)

    @torch.inference_mode()
    def run_seeing_media(self, size: int) -> None:
        """Launches a step of up to `size` tokens with what each of them sees, which compiles attention of
        such steps: that of the columns on the device. Does nothing where no layer sees media whole."""
        if self._whole_media is not None:
            batch = self.buffers.batch(self.buffers.graph_shape(size), False)
            self.model(batch.with_last_seen(batch.positions.contiguous()), self._caches)

    @torch.inference_mode()
    def capture_sampling(self, size: int) -> None:
        """Captures graphs of what follows a graph of a step, for up to `size` rows that sample: one for each
        PLAIN work, and one for each where adapters change the logits. size: of
        worker.cuda.graphs.sampling_sizes(). The largest step has been captured."""
        assert self._captured is not None
        hidden, rows = self._captured, self.buffers.sample_rows(size)
        self.buffers.clear()  # nothing is appended to a row before a step samples
        with_adapters = (False, True) if self._may_adapt_logits else (False,)
        for work, is_adapted in product(PLAIN, with_adapters):

            def run(work: Work = work, is_adapted: bool = is_adapted) -> torch.Tensor:
                logits = self.sampled_logits(hidden, size, is_adapted)
                tokens = self.sampler.choose(logits, rows, work)
                self.device_rows.append(rows, tokens)
                return tokens

            run()  # compiles, which a capture cannot
            self.sampling_graphs.setdefault((work, is_adapted), Graphs()).add(size, self.device.capture(run))

    def sample_in_graph(self, rows: list[int]) -> torch.Tensor | None:
        """Runs the graph that samples for the rows [A] of the step that ran in a graph before. Returns their
        tokens [A] int64, which the next step overwrites; None: nothing ran, there is none for these rows."""
        if not self.sampling_graphs:
            return None
        graphs = self.sampling_graphs.get((self.sampler.needs(rows), self._adapts_logits))
        graph = None if graphs is None else graphs.find(len(rows))
        if graph is None:
            return None
        self.sampler.begin(rows)
        return graph()[: len(rows)]

    @torch.inference_mode()
    def score(self, count: int) -> None:
        """Computes the logits of so many hidden states, for a warm-up: those of prompts come in any
        number."""
        if not self.model.gets_tokens:
            self.model.logits(self._zeros(count))

    @torch.inference_mode()
    def score_adapted(self, count: int) -> None:
        """Launches what adapters of so many tokens do to logits, for a warm-up."""
        if self._may_adapt_logits:
            self.model.logits(self._zeros(1), self.buffers.adapters.nowhere(count))

    @property
    def _may_adapt_logits(self) -> bool:
        return self.adapters is not None and self.model.head.number is not None

    def _zeros(self, count: int) -> torch.Tensor:
        """Returns hidden states [count, E]."""
        like = self.model.head.weight
        return torch.zeros(count, like.shape[1], dtype=like.dtype, device=like.device)

    def sampled_logits(self, hidden: torch.Tensor, count: int, is_adapted: bool) -> torch.Tensor:
        """Returns the logits [count, V] that the step's rows sample from; zeros without memory, where another
        rank chooses without those of this one. hidden: [T, E]. is_adapted: adapters change logits."""
        if self.model.gets_tokens:
            return hidden.new_zeros((1, 1), dtype=torch.float32).expand(count, self.rows.vocab_size)
        adapters = self.buffers.logit_adapters.of(count) if is_adapted else None
        return self.model.logits(hidden.index_select(0, self.buffers.logit_tokens(count)), adapters)

    def _forward(self, shape: StepShape, is_adapted: bool = False) -> torch.Tensor:
        """Returns the hidden states [T, E] of the step whose columns are on the device."""
        batch = self.buffers.batch(shape, is_adapted)
        if self._values is not None:
            batch = self._values.put(batch)
        if self._last_seen is not None:
            batch = batch.with_last_seen(self._last_seen)
        return self.model(batch, self._caches)

    def _sent(self, values: torch.Tensor) -> torch.Tensor:
        """Returns values [N, E] that stand in place of tokens, where the model reads them."""
        if values.device.type == self.device.place.type:
            return values
        return self.device.send(values.view(torch.uint8).numpy()).view(values.dtype)

    def _encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """Returns the vectors of an image on the device; see worker.step.media.Encode."""
        assert self.model.vision is not None
        return self.model.vision(self.device.send(pixels.numpy()))


def copy_parts(sources: Integers, targets: Integers, bytes_per_block: int) -> Iterator[slice]:
    """Yields slices of copies [C] that need a buffer of at most BUFFER_BYTES each. Copies of which one's
    source is another's target are one slice, since all sources are read first: the core plans none in a usual
    step."""
    most = max(1, requirements.BUFFER_BYTES // bytes_per_block)
    if len(np.intersect1d(sources, targets)):
        most = len(sources)
    yield from (slice(begin, begin + most) for begin in range(0, len(sources), most))


class CudaOutputs:
    """Hidden states of one step on the device. A worker.executor.backend.StepOutputs."""

    def __init__(
        self,
        backend: CudaBackend,
        layout: StepLayout,
        hidden: torch.Tensor,
        in_graph: bool,
        adapts_logits: bool,
    ) -> None:
        """hidden: [T, E], and more behind it where a graph is padded. in_graph: it is of a graph.
        adapts_logits: adapters change the logits."""
        self._backend, self._layout, self._hidden, self._in_graph = backend, layout, hidden, in_graph
        self._adapts_logits = adapts_logits
        self._all_logits: torch.Tensor | None = None  # [A, V]

    def prompt_logprobs(
        self, parts: Sequence[PromptPart]
    ) -> Deferred[Iterable[worker_pb2.RowPromptLogprobs]]:
        backend, scores = self._backend, PromptScores(score, LOGITS)
        if backend.model.gets_tokens:
            return lambda: ()

        def logits_of(tokens: Integers) -> torch.Tensor:
            given = backend.logit_adapters(tokens)
            adapters = None if given is None else backend.buffers.adapters.sent(given, len(tokens))
            hidden = self._hidden.index_select(0, backend.device.send(tokens))
            return backend.model.logits(hidden, adapters)

        rows = backend.rows
        scores.add(parts, self._layout.row_starts, rows.token_ids, logits_of, rows.vocab_size)
        return scores.columns

    def sample(
        self, rows: Integers, index: Integers | None, logprobs: Mapping[int, LogprobCandidates]
    ) -> SampledTokens:
        backend, scores, names = self._backend, SampledScores(logprobs, score), rows.tolist()
        tokens = None
        if self._in_graph and index is None and not scores.watches(names):
            tokens = backend.sample_in_graph(names)
        if tokens is None:
            tokens = self._launch_sampling(names, index, scores)
        fetched = backend.device.fetch(tokens)
        self._record(names, fetched)
        if backend.most_queries > 1:
            backend.device.record().synchronize()
            return SampledTokens(fetched.numpy(), fetched.numpy, scores.columns)
        return SampledTokens(np.zeros(len(rows), np.int64), fetched.numpy, scores.columns)

    def _launch_sampling(
        self, rows: list[int], index: Integers | None, scores: SampledScores
    ) -> torch.Tensor:
        """Samples for rows [A] kernel by kernel, and appends the tokens [A] int64. index: see sample()."""
        backend, logits = self._backend, self._logits()
        room = len(rows) + -len(rows) % ALIGNMENT
        row_index = backend.buffers.sample_rows(room)
        if index is not None:
            logits = logits.index_select(0, backend.device.send(index))
            padded = np.full(room, backend.rows.max_num_rows, np.int32)
            padded[: len(rows)] = rows
            row_index = backend.device.send(padded)
        tokens = backend.sampler.sample(logits, rows, scores, row_index)
        backend.device_rows.append(row_index[: len(rows)], tokens)
        return tokens

    def _record(self, rows: list[int], fetched: torch.Tensor) -> None:
        """Lets the grammars of rows [N] follow their tokens, once these are on the host."""
        if self._backend.grammars.users(rows):
            event = self._backend.device.record()

            def tokens() -> Integers:
                event.synchronize()
                numbers: Integers = fetched.numpy()
                return numbers

            self._backend.grammars.record(rows, tokens)

    def beam_candidates(self, rows: Integers, index: Integers, count: int) -> Deferred[BeamCandidates]:
        device = self._backend.device
        logits = self._logits().index_select(0, device.send(index))
        ids, logprobs = map(device.fetch, self._backend.sampler.beam_candidates(logits, rows.tolist(), count))
        return lambda: BeamCandidates(ids.numpy(), logprobs.numpy())

    def sampled_states(self, index: Integers) -> States:
        backend = self._backend
        tokens = backend.buffers.logit_tokens(len(self._layout.logit_tokens))
        members = tokens.index_select(0, backend.device.send(index))
        return backend.device.fetch(self._hidden.index_select(0, members).float()).numpy

    def chosen_logits(self, index: Integers, token_ids: Integers) -> States:
        device = self._backend.device
        logits = self._logits().index_select(0, device.send(index))
        return device.fetch(logits.gather(1, device.send(token_ids)).float()).numpy

    def row_states(self, entry: int, count: int) -> States:
        first = int(self._layout.row_starts[entry])
        return self._backend.device.fetch(self._hidden[first : first + count].float()).numpy

    def _logits(self) -> torch.Tensor:
        """Returns the logits of all rows that sample, [A, V]; with drafts, of all positions."""
        if self._all_logits is None:
            count = len(self._layout.logit_tokens)
            self._all_logits = self._backend.sampled_logits(self._hidden, count, self._adapts_logits)
        return self._all_logits


class CudaCompletion:
    """An event behind everything that a step launched. A worker.executor.backend.Completion."""

    def __init__(self, backend: CudaBackend, event: Event, clock: LaunchClock) -> None:
        self._backend, self._event, self._clock = backend, event, clock

    def seconds_left(self, followed: bool) -> float:
        """Returns 0 with another step behind it: there is no plan to listen for, and wait() is due."""
        return 0.0 if followed or self._event.query() else POLL_S

    def wait(self) -> StepTimes:
        check = self._backend.check_ranks
        while check is not None and not self._event.query():
            check()  # a copy from a rank that has ended never ends
            time.sleep(POLL_S)
        self._event.synchronize()  # the step's one wait
        return self._backend.completed(self._clock)
