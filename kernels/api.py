"""What the worker's layers, models and plans of attention may import of the kernels."""

from typing import TYPE_CHECKING

from kernels.cpu.attention.block_attention import BlockPlan as BlockPlan
from kernels.cpu.attention.block_attention import block_attention as block_attention
from kernels.cpu.attention.block_attention import block_kernels as block_kernels
from kernels.cpu.attention.block_attention import block_plan as block_plan
from kernels.cpu.attention.block_attention import scoring_record as scoring_record
from kernels.cpu.attention.block_kernels import BlockKernels as BlockKernels
from kernels.cpu.attention.latent.attention import latent_attention as latent_attention
from kernels.cpu.attention.latent.attention import latent_kernels as latent_kernels
from kernels.cpu.attention.latent.attention import store_latents as store_latents
from kernels.cpu.attention.planning.work_items import Int64s as Int64s
from kernels.cpu.matmul.groups.weight import GroupedWords as GroupedWords
from kernels.cpu.matmul.matrix import PackedMatrix as PackedMatrix
from kernels.cpu.matmul.matrix import PackedTable as PackedTable
from kernels.cpu.runtime.arena import Arena as Arena
from kernels.cpu.weight_forms import WeightForms as WeightForms
from kernels.cpu.weight_forms import exact_weight as exact_weight
from kernels.ops.attention.e4m3 import E4M3 as E4M3
from kernels.ops.attention.paged_attention import CacheShape as CacheShape
from kernels.ops.attention.paged_attention import GatherPlan as GatherPlan
from kernels.ops.attention.paged_attention import paged_attention as paged_attention
from kernels.ops.attention.paged_attention import plan_attention as plan_attention
from kernels.ops.attention.ragged import Integers as Integers
from kernels.ops.attention.store_kv import slot_rows as slot_rows
from kernels.ops.attention.store_kv import store_kv as store_kv
from kernels.ops.experts.routing import Routing as Routing
from kernels.ops.states.delta_rule import DeltaShape as DeltaShape
from kernels.ops.states.selective_scan import MambaShape as MambaShape
from kernels.ops.states.selective_scan import ScanRates as ScanRates
from kernels.ops.states.update_log import update_width as update_width
from kernels.torch_ops import HeadNorm as HeadNorm
from kernels.torch_ops import Ops as Ops
from kernels.triton import requirements
from kernels.triton.attention.paged_kernels import PagedKernels as PagedKernels
from kernels.triton.matmul.low_bit_weight import LowBitWeight as LowBitWeight
from kernels.triton.matmul.low_bit_weight import padded_rows as padded_rows

if TYPE_CHECKING:  # they import triton
    from kernels.triton.attention.fp8 import KVScales as KVScales
    from kernels.triton.attention.paged_attention import PagedBatch as PagedBatch


def default_ops() -> Ops:
    """Returns the operations of a model for which nothing else is chosen: torch's, or Triton's where they are
    interpreted."""
    if not requirements.INTERPRETED:
        return _TORCH
    from kernels.triton_ops import TritonOps  # imports triton

    return TritonOps()


_TORCH = Ops()
