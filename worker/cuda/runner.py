"""Launches step plans on the device, and hands over what comes of them."""

import time
from collections import deque

import numpy as np
import torch

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.cuda.device import Device
from worker.cuda.graphs import DecodeGraphs
from worker.cuda.inflight_step import Drawn, Flight, Offered
from worker.cuda.logprobs import PromptScores, SampledScores
from worker.cuda.rows import DeviceRows
from worker.cuda.sampler import Sampler
from worker.cuda.step_buffers import StepBuffers, StepLayout, StepShape
from worker.memory.kv_cache import KVCache
from worker.memory.swap_space import SwapSpace
from worker.models.base import LanguageModel
from worker.sampling.logprobs.requests import LogprobWishes
from worker.step.beams import Beams
from worker.step.plan_reader import Step, append_tokens, apply_changes, block_copies, read_step, read_swaps
from worker.step.rows import RowTable

GLANCE_S = 100e-6
"""Between two looks whether a step is done, while the core may still send the next one: a result is late by
half of it, the device waits for none of it."""


class CudaRunner:
    """A worker.loop.StepRunner. The host keeps the same rows as the CPU's runner does and checks plans
    against them, but for the tokens that rows sample: those stay on the device, where the next step finds
    them, and go to the host for the core alone."""

    def __init__(
        self,
        model: LanguageModel,
        cache: KVCache,
        swap_space: SwapSpace,
        rows: RowTable,
        sampler: Sampler,
        max_num_batched_tokens: int,
        device: Device,
    ) -> None:
        self._model, self._cache, self._rows, self._sampler = model, cache, rows, sampler
        self._swap_space, self._device = swap_space, device
        self._max_num_batched_tokens = max_num_batched_tokens
        self._wishes = LogprobWishes(rows.vocab_size)
        self._beams = Beams(rows.max_num_rows, rows.vocab_size)
        self._device_rows = DeviceRows(rows, device)
        self._buffers = StepBuffers(rows, self._device_rows, device, max_num_batched_tokens, cache.specs)
        self._graphs = DecodeGraphs()
        self._flights: deque[Flight] = deque()
        self._free_since = time.monotonic_ns()

    @torch.inference_mode()
    def launch(self, plan: worker_pb2.StepPlan) -> None:
        """See StepRunner. Raises PlanError when the plan does not fit the rows."""
        flight = Flight(plan.step, self._device)
        apply_changes(plan, self._rows, (self._sampler, self._wishes, self._beams))
        appended, token_ids = append_tokens(plan, self._rows)
        self._device_rows.update(plan, appended)
        if appended:
            self._sampler.append(appended, self._device.send(token_ids))
        self._move_blocks(plan)
        if plan.rows:
            self._compute(plan, flight)
        flight.launched()
        self._flights.append(flight)

    def seconds_left(self) -> float | None:
        """See StepRunner. With another step behind it there is nothing to listen for meanwhile: finish() may
        as well wait."""
        if not self._flights:
            return None
        return 0.0 if len(self._flights) > 1 or self._flights[0].is_done() else GLANCE_S

    def finish(self) -> worker_pb2.StepResult:
        """See StepRunner."""
        result = self._flights.popleft().result(self._free_since)
        self._free_since = time.monotonic_ns()
        return result

    def execute(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        """One step, with nothing under way beside it."""
        self.launch(plan)
        return self.finish()

    @torch.inference_mode()
    def capture(self, size: int) -> None:
        """A graph for steps that decode so many rows. One of that size has been executed before."""
        shape = StepShape(size, size, size)
        self._graphs.add(size, self._device.capture(lambda: self._forward(shape)))

    def _forward(self, shape: StepShape) -> torch.Tensor:
        """-> [T, E], of the step whose columns are on the device."""
        return self._model(self._buffers.batch(shape), self._cache.layers)

    def _move_blocks(self, plan: worker_pb2.StepPlan) -> None:
        """To host memory, back from there, then within the cache."""
        swaps = read_swaps(plan, self._cache.num_blocks, self._swap_space.num_blocks)
        if swaps:
            self._swap_space.execute(swaps)
        sources, targets = block_copies(plan, self._cache.num_blocks)
        if len(sources):
            self._cache.copy_blocks(self._device.send(sources), self._device.send(targets))

    def _compute(self, plan: worker_pb2.StepPlan, flight: Flight) -> None:
        """What the step computes and samples."""
        step = read_step(plan, self._rows, self._max_num_batched_tokens)
        layout = self._buffers.load(step)
        flight.prepared()
        hidden = self._graphs.run(layout.shape)
        if hidden is None:
            hidden = self._forward(layout.shape)
        flight.computed()
        self._rows.finish_step(step.rows, step.starts + step.counts)
        self._score_prompts(hidden, layout, step, flight)
        if len(step.sample_rows):
            chosen = hidden.index_select(0, self._buffers.logit_tokens(len(step.sample_rows)))
            self._sample(self._model.logits(chosen), step.sample_rows, flight)

    def _score_prompts(self, hidden: torch.Tensor, layout: StepLayout, step: Step, flight: Flight) -> None:
        """hidden: [T, E]. The log-probabilities of prompts that somebody wants."""
        parts = self._wishes.prompt_parts(step.rows, step.starts, step.counts)
        if parts:
            scores = PromptScores()
            scores.add(
                parts,
                layout.row_starts,
                self._rows.token_ids,
                lambda places: self._model.logits(hidden.index_select(0, self._device.send(places))),
                self._rows.vocab_size,
            )
            flight.take_prompts(scores)

    def _sample(self, logits: torch.Tensor, rows: Integers, flight: Flight) -> None:
        """logits: [A, V]; rows: [A]."""
        beams = self._beams.among(rows)
        if not beams.any():
            flight.take(beams, self._draw(logits, rows, self._buffers.sample_rows(len(rows))), None)
            return
        drawn: Drawn | None = None
        if not beams.all():
            others = self._device.send(np.flatnonzero(~beams))
            device_rows = self._buffers.sample_rows(len(rows)).index_select(0, others)
            drawn = self._draw(logits.index_select(0, others), rows[~beams], device_rows)
        counts = self._beams.counts(rows[beams])
        ours = logits.index_select(0, self._device.send(np.flatnonzero(beams)))
        ids, logprobs = self._sampler.offer(ours, rows[beams].tolist(), int(counts.max()))
        flight.take(beams, drawn, Offered(ids, logprobs, counts))

    def _draw(self, logits: torch.Tensor, rows: Integers, device_rows: torch.Tensor) -> Drawn:
        """logits: [A, V]; rows: [A], twice. Their tokens, which are appended to them, on the device."""
        scores = SampledScores(self._wishes)
        tokens = self._sampler.sample(logits, rows.tolist(), scores)
        self._device_rows.append(device_rows, tokens)
        self._rows.append(rows, np.zeros(len(rows), np.int64))  # whatever they are
        return Drawn(tokens, scores)
