"""What the worker may import of the kernels."""

from kernels.cpu.matmul.compact.weight import compact_weight as compact_weight
from kernels.cpu.matmul.groups.weight import GroupedWeight as GroupedWeight
from kernels.cpu.matmul.groups.weight import grouped_weight as grouped_weight
from kernels.cpu.matmul.groups.words import GroupedWords as GroupedWords
from kernels.cpu.runtime.arena import Arena as Arena
from kernels.cpu.weight_forms import PackedMatrix as PackedMatrix
from kernels.cpu.weight_forms import PackedTable as PackedTable
from kernels.cpu.weight_forms import WeightForms as WeightForms
from kernels.ops.delta.delta_rule import DeltaShape as DeltaShape
from kernels.ops.mamba.selective_scan import MambaShape as MambaShape
from kernels.ops.mamba.selective_scan import ScanRates as ScanRates
from kernels.torch_ops import HeadNorm as HeadNorm
from kernels.torch_ops import Ops as Ops
from kernels.triton import requirements
from kernels.triton.matmul.low_bit_weight import LowBitWeight as LowBitWeight
from kernels.triton.matmul.low_bit_weight import padded_rows as padded_rows


def default_ops() -> Ops:
    """Returns the operations of a model for which nothing else is chosen: torch's, or Triton's where they are
    interpreted."""
    if not requirements.INTERPRETED:
        return _TORCH
    from kernels.triton_ops import TritonOps  # imports triton

    return TritonOps()


_TORCH = Ops()
