"""The inputs of a step for the compiled CPU kernels: made in one call, in place.

Rows keep the plan's order, without padding: attention over blocks does not need neighbours of similar length.
A step of the same shape as the last one, as most decoding steps are, reuses its tensors and attention plans:
only their contents are written again. The reference is worker.model_input.build_input_batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.cpu.attention.planning.work_items import ITEM_WORDS, plan_sizes
from kernels.cpu.step.records import PrepareInputsJob
from kernels.ops.delta.spans import Spans
from worker.attention.block_plan import BlockStep
from worker.attention.kv_cache_spec import CacheLayout, KVCacheSpec
from worker.model_input import StepBatch, build_input_batch, with_all_positions
from worker.step.plan_reader import Step
from worker.step.rows import RowTable

CONTEXT_STEP = 256
"""Attention plans are made for contexts rounded up to a multiple of this, so that many steps reuse them."""


BuildInputs = Callable[[Step, bool], StepBatch]
"""Called with a step and whether all of its sampled rows are greedy, see worker.model_input.InputBatch."""


def input_builder(
    rows: RowTable,
    specs: Sequence[KVCacheSpec],
    layout: CacheLayout,
    kernels: BlockKernels | None,
    has_states: bool = False,
) -> BuildInputs:
    """Returns the function that makes the inputs of a runner's steps. specs: one per layer. kernels: what
    reads and writes the cache; None: torch. has_states: other layers keep a state per row."""
    kinds = tuple(dict.fromkeys(specs))
    if kernels is not None:
        return BlockInputs(rows, kinds, kernels, has_states).build

    def build(step: Step, greedy: bool) -> StepBatch:
        work = step.rows, step.starts, step.counts, step.sample_sources
        batch = replace(build_input_batch(rows, *work, kinds, layout, has_states), all_greedy=greedy)
        return batch if step.num_logits is None else with_all_positions(batch, step.num_logits)

    return build


class _Layout(NamedTuple):
    """The shape of a batch: batches of one layout differ in their contents alone."""

    num_tokens: int  # T
    num_rows: int  # R
    num_samples: int  # A
    num_items: int  # I, of attention
    num_places: int  # for parts of split rows
    context: int
    in_order: bool  # all positions are sampled from, one row after another
    greedy: bool


class BlockInputs:
    """Makes the inputs of one backend's steps."""

    def __init__(
        self, rows: RowTable, specs: Sequence[KVCacheSpec], kernels: BlockKernels, has_states: bool = False
    ) -> None:
        """specs: each kind of layer once; they have the same heads, and differ in their windows. has_states:
        see input_builder()."""
        from kernels.cpu.step.prepare_inputs import prepare_inputs  # compiles, the first time

        self._prepare = prepare_inputs
        self._kernels, self._tables, self._specs = kernels, rows.blocks, tuple(specs)
        self._has_states = has_states
        (self._num_kv_heads,) = {spec.num_kv_heads for spec in specs}
        self._joins = all(spec.window is None for spec in specs)
        self._job = PrepareInputsJob(
            token_ids=rows.token_ids.ctypes.data,
            token_ids_stride=rows.token_ids.strides[0],
            blocks=rows.blocks.ctypes.data,
            blocks_stride=rows.blocks.strides[0],
            prompt_lens=rows.prompt_lens.ctypes.data,
            block_size=kernels.block_size,
            kv_heads=self._num_kv_heads,
            group=kernels.group,
        )
        self._layout: _Layout | None = None
        self._batch: StepBatch
        self._made = np.zeros(1, np.int64)
        self._items = 0  # how many there were: see kernels.cpu.attention.block_attention.BlockPlan

    def build(self, step: Step, greedy: bool = False) -> StepBatch:
        """Returns the inputs of a step, valid until the next call.

        The same object as in the last call: only the contents of its tensors have changed. But where rows
        with drafts are beside prompts, another one says from which positions they sample.
        """
        layout, limits = self._layout_of(step, greedy)
        if layout != self._layout:
            self._batch, self._layout, self._items = self._make(layout), layout, 0
        job, address, column = self._job, step.address, 8 * layout.num_rows
        job.rows, job.starts, job.counts = address, address + column, address + 2 * column
        job.sources = address + 3 * column + 8 * layout.num_samples
        job.num_rows, job.num_samples = layout.num_rows, layout.num_samples
        job.whole, job.joined = limits
        self._prepare(job)
        if self._batch.spans is not None:
            self._batch.spans.write(step.rows, step.starts, step.counts)
        if self._made[0] != self._items:
            self._batch, self._items = replace(self._batch), int(self._made[0])
        return self._batch if step.num_logits is None else with_all_positions(self._batch, step.num_logits)

    def _layout_of(self, step: Step, greedy: bool) -> tuple[_Layout, tuple[int, int]]:
        """Returns a step's layout, and the most positions of an unsplit row and of two rows in one item."""
        tokens, context, in_order = step.measures
        rows = len(step.rows)
        sizes = plan_sizes(self._kernels, step.starts, step.counts, tokens, context)
        rounded = -(-context // CONTEXT_STEP) * CONTEXT_STEP
        in_order = in_order and tokens == step.num_sampled_positions
        counts = tokens, rows, len(step.sample_rows), sizes.items, sizes.places
        layout = _Layout(*counts, rounded, in_order, greedy)
        return layout, (sizes.whole, sizes.joined if self._joins else 0)

    def _make(self, layout: _Layout) -> StepBatch:
        """Returns a batch whose contents are not written yet, and sets their addresses in the record."""
        tokens = layout.num_tokens
        slots = tokens * self._num_kv_heads
        sizes = (
            tokens,
            tokens,
            tokens,
            slots,
            layout.num_items * ITEM_WORDS,
            layout.num_rows,
            layout.num_samples,
            1,
        )
        parts = np.split(np.empty(sum(sizes), np.int64), np.cumsum(sizes[:-1]))
        ids, positions, prompt_lens, slot_rows, items, row_starts, logit_tokens, self._made = parts
        job = self._job
        job.out_ids, job.out_positions = ids.ctypes.data, positions.ctypes.data
        job.out_prompt_lens, job.out_slots = prompt_lens.ctypes.data, slot_rows.ctypes.data
        job.out_items, job.out_row_starts = items.ctypes.data, row_starts.ctypes.data
        job.out_logit_tokens, job.out_made = logit_tokens.ctypes.data, self._made.ctypes.data
        job.num_items = layout.num_items
        items = items.reshape(layout.num_items, ITEM_WORDS)
        step = BlockStep(
            self._kernels,
            items,
            self._made,
            self._tables,
            layout.context,
            layout.num_places,
            torch.from_numpy(slot_rows),
        )
        return StepBatch(
            token_ids=torch.from_numpy(ids),
            positions=torch.from_numpy(positions),
            prompt_lens=torch.from_numpy(prompt_lens),
            attention={spec: spec.block_plan(step) for spec in self._specs},
            max_context=layout.context,
            spans=Spans.empty(layout.num_rows) if self._has_states else None,
            logit_tokens=None if layout.in_order else torch.from_numpy(logit_tokens),
            row_starts=row_starts,
            all_greedy=layout.greedy,
        )
