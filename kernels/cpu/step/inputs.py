"""The inputs of a step for the compiled CPU kernels: made in one call, in place.

Rows keep the plan's order, without padding: attention over blocks does not need neighbours of similar length.
A step of the same shape as one of the last few, as most decoding steps are, reuses its tensors and attention
plans: only their contents are written again. So do steps with drafts, whose shapes take turns. The reference
is StepBatch made by numpy and torch (tests/worker/cpu/test_inputs.py).

StepCheck and RepeatedStep are the other compiled functions of a step, for modules that do not compile them.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from kernels.attention.block_plan import BlockStep
from kernels.attention.kv_cache_spec import KVCacheSpec
from kernels.batch import SampledBy, StepBatch
from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.cpu.attention.planning.work_items import ITEM_WORDS, JOINED_SHARES, SHARES, Int64s, plan_sizes
from kernels.cpu.attention.sizes import PART
from kernels.cpu.program.program import StepProgram
from kernels.cpu.step.records import CheckStepJob, PrepareInputsJob, RepeatStepJob
from kernels.ops.attention.ragged import Integers
from kernels.ops.sampling.columns import SamplingColumns
from kernels.ops.states.spans import Spans
from kernels.wanted import Wanted

CONTEXT_STEP = 256
"""Attention plans are made for contexts rounded up to a multiple of this, so that many steps reuse them."""
KEPT, KEPT_TOKENS = 8, 64
"""Shapes of steps whose tensors are kept, of at most so many tokens: those that were needed last."""


class StepColumns(Protocol):
    """What a step computes. Its int64 columns are contiguous, in this order; behind them is the index into
    rows of each sample [A]."""

    rows: Integers  # [R]
    starts: Integers  # [R]
    counts: Integers  # [R]
    sample_rows: Integers  # [A]
    address: int  # of the first column
    num_logits: Integers | None  # [A] positions from which a row samples; None: 1 each

    @property
    def measures(self) -> tuple[int, int, bool]:
        """As StepCheck returns them."""
        ...

    @property
    def num_sampled_positions(self) -> int:
        """Logits that the step computes."""
        ...


class _Layout(NamedTuple):
    """The shape of a batch: batches of one layout differ in their contents alone."""

    num_tokens: int  # T
    num_rows: int  # R
    num_samples: int  # A
    num_items: int  # I, of attention
    num_places: int  # for parts of split rows
    context: int
    in_order: bool  # all positions are sampled from, one row after another
    wanted: Wanted
    threads: int  # that have scratch memory


@dataclass
class _Prepared:
    """A batch of one layout, where the kernel writes it, and how many items of attention it had last."""

    batch: StepBatch
    parts: tuple[npt.NDArray[np.int64], ...]  # as PrepareInputsJob names them: see _OUTPUTS
    items: int = 0  # see kernels.cpu.attention.block_attention.BlockPlan

    @property
    def made(self) -> int:
        """How many items it has."""
        return int(self.parts[-1][0])


_OUTPUTS = (
    "out_ids",
    "out_positions",
    "out_prompt_lens",
    "out_slots",
    "out_items",
    "out_rows",
    "out_row_starts",
    "out_logit_tokens",
    "out_made",
)


class BlockInputs:
    """Makes the inputs of one backend's steps."""

    def __init__(
        self,
        token_ids: Integers,
        blocks: Int64s,
        prompt_lens: Integers,
        specs: Sequence[KVCacheSpec],
        kernels: BlockKernels,
        has_states: bool = False,
        columns: SamplingColumns | None = None,
    ) -> None:
        """token_ids [rows, L], blocks [rows, N], prompt_lens [rows]: int64 of the table of rows, which stay
        where they are. specs: each kind of layer once; they have as many heads, and differ in head sizes and
        windows. has_states: other layers keep a state per row. columns: of the rows, by which tokens are
        chosen; None: the largest logits are."""
        from kernels.cpu.step.prepare_inputs import prepare_inputs  # compiles, the first time

        self._prepare = prepare_inputs
        self._kernels, self._tables = kernels, blocks
        self._kept_arrays = token_ids, prompt_lens
        self._columns = columns or SamplingColumns(len(prompt_lens))
        # Plans share scratch memory, which moves when it grows: so those of the largest heads come first.
        self._specs = sorted(specs, key=lambda spec: -spec.head_dim)
        self._has_states = has_states
        (self._num_kv_heads,) = {spec.num_kv_heads for spec in specs}
        self._joins = all(spec.window is None for spec in specs)
        self._job = PrepareInputsJob(
            token_ids=token_ids.ctypes.data,
            token_ids_stride=token_ids.strides[0],
            blocks=blocks.ctypes.data,
            blocks_stride=blocks.strides[0],
            prompt_lens=prompt_lens.ctypes.data,
            block_size=kernels.block_size,
            kv_heads=self._num_kv_heads,
            group=kernels.group,
        )
        self._layout: _Layout | None = None
        self._prepared: _Prepared
        self._kept: OrderedDict[_Layout, _Prepared] = OrderedDict()

    def __call__(self, step: StepColumns, wanted: Wanted = Wanted.STATES) -> StepBatch:
        """Returns the inputs of a step, valid until the next call.

        The same object as in the last call of this layout: only the contents of its tensors have changed. But
        where rows with drafts are beside prompts, another one says from which positions they sample.
        """
        layout, limits = self._layout_of(step, wanted)
        if layout != self._layout:
            self._prepared, self._layout = self._find(layout), layout
        prepared = self._prepared
        job, address, column = self._job, step.address, 8 * layout.num_rows
        job.rows, job.starts, job.counts = address, address + column, address + 2 * column
        job.sources = address + 3 * column + 8 * layout.num_samples
        job.num_rows, job.num_samples = layout.num_rows, layout.num_samples
        job.whole, job.joined = limits
        self._prepare(job)
        if isinstance(prepared.batch.spans, Spans):
            prepared.batch.spans.write(step.rows, step.starts, step.counts)
        if prepared.made != prepared.items:
            prepared.batch, prepared.items = replace(prepared.batch), prepared.made
        batch = prepared.batch
        return batch if step.num_logits is None else batch.with_all_positions(step.num_logits)

    def describe(self, job: RepeatStepJob) -> None:
        """Writes down what was made in the last call, for a step that repeats it."""
        job.inputs, job.items = self._job.address, self._prepared.items
        kernels, rows = self._kernels, self._job.num_rows
        joins = self._joins and kernels.joins and rows >= 2 * JOINED_SHARES
        job.joined_shares = JOINED_SHARES * kernels.team.threads if joins else 0

    def steps_alike(self, step: StepColumns) -> int:
        """How many further steps of these rows have the layout of this one, if each computes its next token:
        only starts differ then. 0 also where long rows may be divided anew in each step."""
        kernels, rows, (_, context, _) = self._kernels, len(step.rows), step.measures
        if context <= PART:
            return -context % CONTEXT_STEP
        if rows * (context + CONTEXT_STEP) > PART * SHARES * kernels.team.threads:
            return 0
        return int((-(step.starts + step.counts) % CONTEXT_STEP).min())

    def _layout_of(self, step: StepColumns, wanted: Wanted) -> tuple[_Layout, tuple[int, int]]:
        """Returns a step's layout, and the most positions of an unsplit row and of two rows in one item."""
        tokens, context, in_order = step.measures
        rows = len(step.rows)
        sizes = plan_sizes(self._kernels, step.starts, step.counts, tokens, context)
        rounded = -(-context // CONTEXT_STEP) * CONTEXT_STEP
        in_order = in_order and tokens == step.num_sampled_positions
        counts = tokens, rows, len(step.sample_rows), sizes.items, sizes.places
        layout = _Layout(*counts, rounded, in_order, wanted, self._kernels.team.threads)
        return layout, (sizes.whole, sizes.joined if self._joins else 0)

    def _find(self, layout: _Layout) -> _Prepared:
        """Returns what was kept for a layout, or is made for it, and sets its addresses in the record."""
        prepared = self._kept.pop(layout, None) or self._make(layout)
        if layout.num_tokens <= KEPT_TOKENS:
            self._kept[layout] = prepared
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        for name, part in zip(_OUTPUTS, prepared.parts, strict=True):
            setattr(self._job, name, part.ctypes.data)
        self._job.num_items = layout.num_items
        return prepared

    def _make(self, layout: _Layout) -> _Prepared:
        """Returns a batch whose contents are not written yet."""
        tokens = layout.num_tokens
        slots = tokens * self._num_kv_heads
        sizes = (
            tokens,
            tokens,
            tokens,
            slots,
            layout.num_items * ITEM_WORDS,
            tokens,
            layout.num_rows,
            layout.num_samples,
            1,
        )
        parts = np.split(np.zeros(sum(sizes), np.int64), np.cumsum(sizes[:-1]))
        ids, positions, prompt_lens, slot_rows, items, rows, row_starts, logit_tokens, made = parts
        items = items.reshape(layout.num_items, ITEM_WORDS)
        step = BlockStep(
            self._kernels,
            items,
            made,
            self._tables,
            layout.context,
            layout.num_places,
            torch.from_numpy(slot_rows),
        )
        batch = StepBatch(
            token_ids=torch.from_numpy(ids),
            positions=torch.from_numpy(positions),
            prompt_lens=torch.from_numpy(prompt_lens),
            attention={spec: spec.block_plan(step) for spec in self._specs},
            max_context=layout.context,
            spans=Spans.empty(layout.num_rows) if self._has_states else None,
            logit_tokens=None if layout.in_order else torch.from_numpy(logit_tokens),
            row_starts=row_starts,
            wanted=layout.wanted,
            sampled_by=SampledBy(torch.from_numpy(rows), self._columns),
        )
        return _Prepared(batch, tuple(parts))


class StepCheck:
    """The check of steps against one table of rows: kernels.cpu.step.check_step."""

    def __init__(
        self,
        num_tokens: Integers,
        num_computed: Integers,
        num_blocks: Integers,
        block_size: int,
        max_length: int,
    ) -> None:
        """num_tokens, num_computed, num_blocks: [rows] int64 of the table, which stay where they are."""
        from kernels.cpu.step.check_step import check_step  # compiles, the first time

        self._check: Callable[[CheckStepJob], None] = check_step
        self._kept = num_tokens, num_computed, num_blocks
        self.marks = np.zeros(len(num_tokens), np.int64)  # 0 but while it checks
        self.job = CheckStepJob(
            num_tokens=num_tokens.ctypes.data,
            num_computed=num_computed.ctypes.data,
            num_blocks=num_blocks.ctypes.data,
            marks=self.marks.ctypes.data,
            max_rows=len(num_tokens),
            block_size=block_size,
            max_length=max_length + 1,
        )

    def __call__(self, address: int, num_rows: int, num_samples: int) -> tuple[int, int, bool] | None:
        """Returns a step's tokens, the largest end of a row, and whether each row that computes samples, in
        the same order; None: it does not fit. address: of its columns, one after another, int64: rows,
        starts, counts [R], sample rows and sources [A]."""
        job = self.job
        job.columns, job.num_rows, job.num_samples = address, num_rows, num_samples
        self._check(job)
        return None if job.tokens < 0 else (job.tokens, job.context, bool(job.in_order))


class RepeatedStep:
    """The last step again, each row one token further: kernels.cpu.step.repeat_step."""

    def __init__(self, check: StepCheck, inputs: BlockInputs) -> None:
        """check, inputs: what the last step was checked by, and has its inputs from."""
        from kernels.cpu.runtime.thread_pool import TEAM
        from kernels.cpu.step.repeat_step import repeat_step  # compiles, the first time

        self._repeat: Callable[[RepeatStepJob], None] = repeat_step
        self._inputs, self._team = inputs, TEAM
        self._job = RepeatStepJob(control=TEAM.address, check=check.job.address)

    def remember(
        self, program: StepProgram, next_starts: int, chosen: tuple[Integers, Integers] | None
    ) -> None:
        """program: that of the last step. next_starts: address of [R] uint32, where the starts of the step
        after are written. chosen: where the program leaves its tokens [R], and the sampler's positions by
        row; None: it computes logits."""
        tokens, positions = (None, None) if chosen is None else chosen
        job = self._job
        self._inputs.describe(job)
        job.program, job.next_starts = program.program.address, next_starts
        self._check = program.check
        job.tokens = 0 if tokens is None else tokens.ctypes.data
        job.positions = 0 if positions is None else positions.ctypes.data

    def run(self) -> bool:
        """Returns whether it has; else the step is another one, and nothing has changed."""
        self._team.call(self._repeat, self._job)
        if self._job.done:
            self._check()
        return bool(self._job.done)

    @property
    def has_appended(self) -> bool:
        """Whether the last run has appended tokens to their rows: the program has chosen all of them."""
        return bool(self._job.appended)
