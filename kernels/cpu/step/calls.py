"""The compiled functions of a step, for modules that do not compile them themselves."""

from collections.abc import Callable

import numpy as np

from kernels.cpu.program.program import StepProgram
from kernels.cpu.step.inputs import BlockInputs
from kernels.cpu.step.records import CheckStepJob, RepeatStepJob
from kernels.ops.attention.ragged import Integers


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
        job.tokens = 0 if tokens is None else tokens.ctypes.data
        job.positions = 0 if positions is None else positions.ctypes.data

    def run(self) -> bool:
        """Returns whether it has; else the step is another one, and nothing has changed."""
        self._team.call(self._repeat, self._job)
        return bool(self._job.done)
