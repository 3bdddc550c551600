"""The compiled operations of Mamba-2 layers, for modules that do not compile them themselves."""

from typing import NamedTuple

import torch

from kernels.cpu.compiler.records import Operation
from kernels.cpu.mamba.records import GroupedNormRecord, SelectiveScanRecord


class MambaKernels(NamedTuple):
    """Of activations of one dtype."""

    scan: Operation[SelectiveScanRecord]  # kernels.cpu.mamba.selective_scan.selective_scan
    norm: Operation[GroupedNormRecord]  # kernels.cpu.mamba.grouped_norm.grouped_norm


def mamba_kernels(dtype: torch.dtype) -> MambaKernels:
    """Returns the operations, compiled if needed. Call only if kernels.cpu.requirements.why_not() is None.
    dtype: bfloat16 or float32."""
    from kernels.cpu.mamba.grouped_norm import grouped_norm, grouped_norm_float32  # compiles, the first time
    from kernels.cpu.mamba.selective_scan import selective_scan, selective_scan_float32

    if dtype == torch.float32:
        return MambaKernels(selective_scan_float32, grouped_norm_float32)
    return MambaKernels(selective_scan, grouped_norm)
