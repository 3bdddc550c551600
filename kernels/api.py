"""What the worker may import of the kernels, but for what needs no torch, and what needs triton."""

from kernels.attention.kv_cache_spec import AttentionSpec as AttentionSpec
from kernels.attention.kv_cache_spec import CacheLayout as CacheLayout
from kernels.attention.kv_cache_spec import KVCacheSpec as KVCacheSpec
from kernels.attention.kv_cache_spec import Plane as Plane
from kernels.attention.kv_cache_spec import RowStateSpec as RowStateSpec
from kernels.attention.latent import LatentSpec as LatentSpec
from kernels.attention.plan import LayerCache as LayerCache
from kernels.attention.plan import Rotation as Rotation
from kernels.attention.plan import Scoring as Scoring
from kernels.attention.torch_plan import HostStep as HostStep
from kernels.batch import InputBatch as InputBatch
from kernels.batch import StepBatch as StepBatch
from kernels.cpu.attention.block_kernels import BlockKernels as BlockKernels
from kernels.cpu.matmul.groups.weight import GroupedWords as GroupedWords
from kernels.cpu.matmul.int8 import QuantizedWeight as QuantizedWeight
from kernels.cpu.matmul.matrix import PackedMatrix as PackedMatrix
from kernels.cpu.matmul.matrix import PackedTable as PackedTable
from kernels.cpu.program.program import CannotRecord as CannotRecord
from kernels.cpu.program.program import StepProgram as StepProgram
from kernels.cpu.program.recording import RecordingOps as RecordingOps
from kernels.cpu.runtime.arena import Arena as Arena
from kernels.cpu.runtime.arena import zeros as zeros
from kernels.cpu.step.inputs import BlockInputs as BlockInputs
from kernels.cpu.step.inputs import RepeatedStep as RepeatedStep
from kernels.cpu.step.inputs import StepCheck as StepCheck
from kernels.cpu.weight_forms import Pack as Pack
from kernels.cpu.weight_forms import WeightForms as WeightForms
from kernels.cpu_ops import CpuOps as CpuOps
from kernels.ops.attention import block_copies as block_copies
from kernels.ops.attention import e4m3 as e4m3
from kernels.ops.layers import adapters as adapters
from kernels.ops.sampling.columns import SamplingColumns as SamplingColumns
from kernels.ops.sampling.logits_processors import Bitmask as Bitmask
from kernels.ops.sampling.logits_processors import PenaltyHistory as PenaltyHistory
from kernels.ops.sampling.token_masks import Prohibitions as Prohibitions
from kernels.ops.states.delta_rule import DeltaShape as DeltaShape
from kernels.ops.states.selective_scan import MambaShape as MambaShape
from kernels.ops.states.selective_scan import ScanRates as ScanRates
from kernels.ops.states.spans import Spans as Spans
from kernels.sampling_ops import SamplingOps as SamplingOps
from kernels.torch_ops import Ops as Ops
from kernels.triton import requirements
from kernels.triton.matmul.low_bit_weight import Code as Code
from kernels.triton.matmul.low_bit_weight import LowBitWeight as LowBitWeight
from kernels.triton.matmul.ranges import SumOrder as SumOrder


def default_ops() -> Ops:
    """Returns the operations of a model for which nothing else is chosen: torch's, or Triton's where they are
    interpreted."""
    if not requirements.INTERPRETED:
        return _TORCH
    from kernels.triton_ops import TritonOps  # imports triton

    return TritonOps()


_TORCH = Ops()
