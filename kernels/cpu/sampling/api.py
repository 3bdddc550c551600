"""The compiled functions of sampling on a CPU, with the threads that share their rows.

Unlike the kernels of a model they run on any CPU, and whatever the model computes in: logits are float32.
All that they need is llvmlite.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from kernels.cpu.runtime.row_threads import RowKernel, RowThreads
from kernels.cpu.sampling.records import BitmaskRecord, ChooseRecord, PenaltiesRecord


@dataclass(frozen=True)
class SamplingKernels:
    """What kernels.cpu.sampling.chooser, table_penalties and bit_masks call."""

    threads: RowThreads
    choose_rows: RowKernel[ChooseRecord]  # kernels.cpu.sampling.choose
    scratch_bytes: Callable[[int], int]  # of a thread, for a vocabulary
    penalize_rows: RowKernel[PenaltiesRecord]  # kernels.cpu.sampling.penalties
    note_tokens: Callable[[PenaltiesRecord, int, int], None]
    mask_rows: RowKernel[BitmaskRecord]  # kernels.cpu.sampling.mask_rows


def sampling_kernels(threads: int) -> SamplingKernels | None:
    """Compiles them, or takes them from disk; None without llvmlite."""
    if find_spec("llvmlite") is None:
        return None
    from kernels.cpu.sampling.choose import choose_rows  # compiles, the first time
    from kernels.cpu.sampling.mask_rows import mask_rows
    from kernels.cpu.sampling.penalties import note_tokens, penalize_rows
    from kernels.cpu.sampling.scratch import scratch_bytes

    return SamplingKernels(
        RowThreads(threads), choose_rows, scratch_bytes, penalize_rows, note_tokens, mask_rows
    )
