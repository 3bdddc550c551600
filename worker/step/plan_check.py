"""Checks that a step fits the rows, in one call where kernels are compiled.

The plan comes from another process, so each step is checked. In a benchmark loop that costs little; in
service a model's weights have evicted the caches since the last step, and thirty calls of numpy then take
considerably longer.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kernels.cpu.step.records import CheckStepJob
from kernels.ops.attention.ragged import Integers
from worker.step.rows import RowTable


class Measures(NamedTuple):
    """Sizes of a step that fits the rows."""

    num_tokens: int
    context: int  # the largest position that a row computes, and one
    in_order: bool  # each row that computes samples, in the same order


class StepCheck:
    """The compiled check of steps against one row table. The reference is check_by_numpy()."""

    def __init__(self, rows: RowTable, kernel: Callable[[CheckStepJob], None]) -> None:
        """kernel: kernels.cpu.step.check_step.check_step."""
        self._rows, self._kernel = rows, kernel
        self._marks = np.zeros(rows.max_num_rows, np.int64)
        self._job = CheckStepJob(
            num_tokens=rows.num_tokens.ctypes.data,
            num_computed=rows.num_computed.ctypes.data,
            num_blocks=rows.num_blocks.ctypes.data,
            marks=self._marks.ctypes.data,
            max_rows=rows.max_num_rows,
            block_size=rows.block_size,
            max_length=rows.max_model_len + 1,
        )

    @property
    def address(self) -> int:
        """Of the job of the last check."""
        return self._job.address

    def __call__(self, columns: Integers, address: int, num_rows: int, num_samples: int) -> Measures:
        """Checks a step and returns its sizes. Raises PlanError when it does not fit.

        columns: rows, starts, counts [R], sample rows and sources [A], one after another, int64. address: of
        the columns.
        """
        job = self._job
        job.columns, job.num_rows, job.num_samples = address, num_rows, num_samples
        self._kernel(job)
        if job.tokens < 0:
            return check_by_numpy(self._rows, columns, num_rows, num_samples)  # raises the reason
        return Measures(job.tokens, job.context, bool(job.in_order))


def compiled_check(rows: RowTable) -> StepCheck:
    """Returns the compiled check. Call only if kernels.cpu.requirements.why_not() is None."""
    from kernels.cpu.step.check_step import check_step  # compiles, the first time

    return StepCheck(rows, check_step)


def check_by_numpy(rows: RowTable, columns: Integers, num_rows: int, num_samples: int) -> Measures:
    """Checks a step and returns its sizes; see StepCheck. Raises PlanError."""
    computing, starts, counts = columns[: 3 * num_rows].reshape(3, num_rows)
    sampling, sources = columns[3 * num_rows :].reshape(2, num_samples)
    ends = starts + counts
    rows.check_compute(computing, starts, counts)
    rows.check_sample(sampling, sources, computing, ends)
    in_order = num_rows == num_samples and bool((sources == np.arange(num_samples)).all())
    return Measures(int(counts.sum()), int(ends.max(initial=0)), in_order)
