"""Repeats a step: rows that decode, each one token further, in one compiled call; where the model's program
does not choose all tokens, up to its logits.

Most steps of a service with few rows are of this kind. For a small model the Python around a step, on caches
that the weights have gone through, is a tenth of it (docs/lab-book.md). The reference is a launch of the
plan by worker.executor.executor, as it happens after any other step: equal tokens, rows and caches.
"""

from array import array
from collections.abc import Callable

import numpy as np

from kernels.api import BlockInputs, RepeatedStep, StepProgram
from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.executor.backend import LaunchClock, SampledTokens
from worker.step.plan_reader import Step
from worker.step.rows import RowTable, column

_FIELDS = frozenset(
    worker_pb2.StepPlan.DESCRIPTOR.fields_by_name[name].number
    for name in (
        *("step", "rows", "starts", "counts", "sample_rows", "sample_sources", "kept_changes"),
        *("table_rows", "table_starts", "table_counts", "table_blocks"),
    )
)
"""Of a plan that may repeat the last one. Rows get blocks as they grow."""
Sample = Callable[[], Integers]
_Columns = tuple[bytes, bytes, bytes, bytes]


def _columns(plan: worker_pb2.StepPlan) -> _Columns:
    """Those that are equal in steps that repeat one another."""
    return plan.rows, plan.counts, plan.sample_rows, plan.sample_sources


class StepRepeater:
    """What one backend's next step may repeat."""

    def __init__(self, rows: RowTable, repeated: RepeatedStep, inputs: BlockInputs) -> None:
        self._rows, self._repeated, self._inputs = rows, repeated, inputs
        self._left = 0  # steps that may be repeated yet
        self._step: Step  # its columns are those of the job
        self._columns: _Columns
        self._starts = b""  # of the next step
        self._next_starts: array[int]  # the same, where the kernel writes them
        self._chosen: Integers | None = None
        self._sample: Sample

    def forget(self) -> None:
        """The next step repeats nothing, unless another one is remembered before."""
        self._left = 0

    def remember(
        self,
        plan: worker_pb2.StepPlan,
        step: Step,
        program: StepProgram,
        chosen: tuple[Integers, Integers] | None,
        sample: Sample,
    ) -> None:
        """The next step may repeat this one, the last that was computed.

        program: its own, which needs nothing that Python writes for each run. chosen: where it leaves its
        tokens [R], and the sampler's positions by row; None: it computes logits. sample: takes tokens [R]
        from the logits, for the sampler, too, where the program has not chosen all.
        """
        measures = step.measures
        if not measures.in_order or measures.num_tokens != len(step.rows) or step.num_logits is not None:
            return
        self._left = self._inputs.steps_alike(step)
        if not self._left:
            return
        self._step, self._columns = step, _columns(plan)
        self._chosen, self._sample = None if chosen is None else chosen[0], sample
        self._next_starts = array("I", (step.starts + 1).tolist())
        self._starts = self._next_starts.tobytes()
        self._repeated.remember(program, self._next_starts.buffer_info()[0], chosen)

    def repeat(self, plan: worker_pb2.StepPlan, clock: LaunchClock) -> SampledTokens | None:
        """Executes a plan. None: it does not repeat the last one, and nothing has changed but blocks that the
        plan gives to rows, which may be given again. Raises PlanError."""
        if not self._left or plan.starts != self._starts or _columns(plan) != self._columns:
            return None
        if not _FIELDS.issuperset([field.number for field, _ in plan.ListFields()]):
            return None
        if plan.table_rows:
            changes = plan.table_rows, plan.table_starts, plan.table_counts, plan.table_blocks
            self._rows.set_blocks(*map(column, changes))
        clock.mark_uploaded()
        if not self._repeated.run():
            return None
        clock.mark_forwarded()
        self._left -= 1
        self._starts = self._next_starts.tobytes()
        if self._chosen is not None and self._repeated.has_appended:
            tokens = self._chosen.copy()  # the next step overwrites them
        else:
            tokens = self._sample()
            self._rows.append(self._step.rows, np.maximum(tokens, 0))
        return SampledTokens(tokens, lambda: tokens, lambda: None)
