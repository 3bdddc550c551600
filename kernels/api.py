"""What the worker's layers and models may import of the kernels."""

from kernels.attention.block_plan import BlockStep as BlockStep
from kernels.attention.kv_cache_spec import AttentionSpec as AttentionSpec
from kernels.attention.kv_cache_spec import CacheLayout as CacheLayout
from kernels.attention.kv_cache_spec import KVCacheSpec as KVCacheSpec
from kernels.attention.kv_cache_spec import Plane as Plane
from kernels.attention.kv_cache_spec import bytes_per_block as bytes_per_block
from kernels.attention.latent import LatentSpec as LatentSpec
from kernels.attention.paged_plan import DeviceStep as DeviceStep
from kernels.attention.plan import AttentionPlan as AttentionPlan
from kernels.attention.plan import HeadNorms as HeadNorms
from kernels.attention.plan import LatentPlan as LatentPlan
from kernels.attention.plan import LayerCache as LayerCache
from kernels.attention.plan import Rotation as Rotation
from kernels.attention.plan import Scoring as Scoring
from kernels.attention.plan import normed_heads as normed_heads
from kernels.attention.row_state import DeltaStateSpec as DeltaStateSpec
from kernels.attention.row_state import MambaStateSpec as MambaStateSpec
from kernels.attention.row_state import RowStateSpec as RowStateSpec
from kernels.attention.torch_plan import HostStep as HostStep
from kernels.batch import InputBatch as InputBatch
from kernels.cpu.matmul.groups.weight import GroupedWords as GroupedWords
from kernels.cpu.matmul.matrix import PackedMatrix as PackedMatrix
from kernels.cpu.matmul.matrix import PackedTable as PackedTable
from kernels.cpu.weight_forms import Pack as Pack
from kernels.cpu.weight_forms import WeightForms as WeightForms
from kernels.ops.experts.routing import Routing as Routing
from kernels.ops.sampling.columns import MIRRORED as MIRRORED
from kernels.ops.sampling.columns import NEUTRAL as NEUTRAL
from kernels.ops.sampling.columns import SamplingColumns as SamplingColumns
from kernels.ops.sampling.logits_processors import Bitmask as Bitmask
from kernels.ops.sampling.logits_processors import PenaltyHistory as PenaltyHistory
from kernels.ops.sampling.token_masks import ANY as ANY
from kernels.ops.sampling.token_masks import Prohibitions as Prohibitions
from kernels.ops.states.delta_rule import DeltaShape as DeltaShape
from kernels.ops.states.selective_scan import MambaShape as MambaShape
from kernels.ops.states.selective_scan import ScanRates as ScanRates
from kernels.sampling_ops import SamplingOps as SamplingOps
from kernels.torch_ops import Ops as Ops
from kernels.triton import requirements
from kernels.triton.matmul.low_bit_weight import DOUBLED as DOUBLED
from kernels.triton.matmul.low_bit_weight import Code as Code
from kernels.triton.matmul.low_bit_weight import LowBitWeight as LowBitWeight


def default_ops() -> Ops:
    """Returns the operations of a model for which nothing else is chosen: torch's, or Triton's where they are
    interpreted."""
    if not requirements.INTERPRETED:
        return _TORCH
    from kernels.triton_ops import TritonOps  # imports triton

    return TritonOps()


_TORCH = Ops()
