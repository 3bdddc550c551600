"""The compiled check of steps, for a table of rows."""

from kernels.cpu.step.inputs import StepCheck
from worker.step.rows import RowTable


def compiled_check(rows: RowTable) -> StepCheck:
    lengths = rows.num_tokens, rows.num_computed, rows.num_blocks
    return StepCheck(*lengths, rows.block_size, rows.max_model_len)
