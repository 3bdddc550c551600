"""What each kind of layer keeps in the KV cache, and how the layers of that kind plan a step.

A model names one KVCacheSpec per layer. The cache asks specs for the planes of a block and knows nothing else
of layers; layers with equal specs share one plan per step, under their spec in InputBatch.attention. A kind
of layer that keeps something else (a latent vector per token, values of 8 bits with scales) is another class
with this interface. Layers of linear attention keep one state per row in place of keys and values of each
token: a RowStateSpec.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.attention.block_plan import BlockAttentionPlan, BlockStep
from kernels.attention.paged_plan import DeviceStep, PagedAttentionPlan
from kernels.attention.plan import AttentionPlan, LatentPlan
from kernels.attention.torch_plan import HostStep, TorchAttentionPlan
from kernels.cpu.attention.block_attention import block_kernels, block_plan
from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.ops.attention.gather_plan import CacheShape, GatherPlan, plan_attention
from kernels.ops.attention.ragged import Integers
from kernels.ops.states.delta_rule import DeltaShape
from kernels.ops.states.selective_scan import MambaShape
from kernels.ops.states.update_log import update_width


@dataclass(frozen=True)
class Plane:
    """One of the tensors that hold a layer's cache: [B, *block_shape]."""

    block_shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block in this plane."""
        return math.prod(self.block_shape) * self.dtype.itemsize


@dataclass(frozen=True)
class CacheLayout:
    """What all layers of a cache have in common."""

    block_size: int  # S: tokens of a block
    num_blocks: int  # without the padding block, which stands behind them
    dtype: torch.dtype  # of queries
    device: torch.device
    each_alone: bool = False  # where torch attends, it does so for each query in a call of its own
    stored: torch.dtype | None = None  # of keys and values; None: that of queries

    @property
    def cache_dtype(self) -> torch.dtype:
        """The dtype of keys and values."""
        return self.stored or self.dtype

    @property
    def pad_block(self) -> int:
        """The id of the worker's own block: finite values that belong to no row."""
        return self.num_blocks


class KVCacheSpec(Protocol):
    """One kind of layer. Hashable; equal specs mean equal plans."""

    @property
    def num_kv_heads(self) -> int:
        """Heads of a token that are stored apart, of those that this rank holds."""
        ...

    @property
    def head_dim(self) -> int:
        """Values of a query, and of a key."""
        ...

    @property
    def window(self) -> int | None:
        """Tokens that a query sees, itself included; None: all."""
        ...

    @property
    def chunked(self) -> bool:
        """True if the window is a chunk; see kernels.ops.attention.gather_plan.first_seen."""
        ...

    @property
    def bidirectional(self) -> bool:
        """True if a query sees what follows; see kernels.ops.attention.gather_plan.last_seen."""
        ...

    @property
    def whole_media(self) -> bool:
        """True if tokens of an item of media, such as an image, see all of it: a step that computes some of
        them says so with AttentionPlan.with_last_seen()."""
        ...

    def planes(self, block_size: int, dtype: torch.dtype) -> tuple[Plane, ...]:
        """The tensors of one layer's cache, in the order in which a LayerCache has them. dtype: of keys and
        values."""
        ...

    def block_kernels(
        self, dtype: torch.dtype, block_size: int, group: int, e4m3: bool = False
    ) -> BlockKernels | None:
        """Returns the CPU's compiled kernels for such layers; None if they do not fit. dtype: of queries.
        group: query heads per KV head. e4m3: whether keys and values have that dtype. Call only if
        kernels.cpu.requirements.why_not() is None."""
        ...

    def torch_plan(self, step: HostStep, layout: CacheLayout) -> AttentionPlan | LatentPlan:
        """Returns the plan of a step that torch computes."""
        ...

    def block_plan(self, step: BlockStep) -> AttentionPlan | LatentPlan:
        """Returns the plan of a step that the CPU's compiled kernels compute."""
        ...

    def paged_plan(self, step: DeviceStep) -> AttentionPlan | LatentPlan:
        """Returns the plan of a step that Triton's kernels compute."""
        ...


@dataclass(frozen=True)
class AttentionSpec:
    """Keys and values of every token; queries see all of them, a window, or a chunk."""

    num_kv_heads: int  # K: those that this rank holds
    head_dim: int  # D
    window: int | None = None  # tokens that a query sees, itself included; None: all
    chunked: bool = False  # see KVCacheSpec
    bidirectional: bool = False  # see KVCacheSpec
    whole_media: bool = False  # see KVCacheSpec

    def planes(self, block_size: int, dtype: torch.dtype) -> tuple[Plane, ...]:
        """Keys and values. Why K stands before S: kernels.ops.attention.paged_attention."""
        plane = Plane((self.num_kv_heads, block_size, self.head_dim), dtype)
        return plane, plane

    def block_kernels(
        self, dtype: torch.dtype, block_size: int, group: int, e4m3: bool = False
    ) -> BlockKernels | None:
        return block_kernels(dtype, block_size, self.head_dim, group, e4m3)

    def torch_plan(self, step: HostStep, layout: CacheLayout) -> AttentionPlan:
        def plan_again(last_seen: Integers) -> GatherPlan:
            return gathering_plan(self, step, layout, last_seen)[0]

        return TorchAttentionPlan(*gathering_plan(self, step, layout), plan_again)

    def block_plan(self, step: BlockStep) -> AttentionPlan:
        plan = block_plan(
            *(step.kernels, step.items, step.made, step.block_tables, step.context, step.num_partials),
            window=self.window,
            shape=(self.num_kv_heads, self.head_dim),
            chunked=self.chunked,
            bidirectional=self.bidirectional,
        )
        return BlockAttentionPlan(plan, step.slot_rows)

    def paged_plan(self, step: DeviceStep) -> AttentionPlan:
        return PagedAttentionPlan(step, self.window, self.chunked, self.bidirectional)


def gathering_plan(
    spec: KVCacheSpec, step: HostStep, layout: CacheLayout, last_seen: Integers | None = None
) -> tuple[GatherPlan, torch.Tensor]:
    """Returns what torch gathers in a step, and the rows of its slots (kernels.ops.attention.store_kv).
    last_seen: see AttentionPlan.with_last_seen(); None: it was not called."""
    shape = CacheShape(
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=layout.block_size,
        pad_block=layout.pad_block,
        dtype=layout.dtype,
        device=layout.device,
        each_alone=layout.each_alone,
    )
    rows = step.starts, step.counts, step.block_tables
    plan = plan_attention(*rows, spec.window, shape, spec.chunked, spec.bidirectional, last_seen)
    return plan, step.slot_rows(spec.num_kv_heads, layout.block_size, layout.device)


@dataclass(frozen=True)
class RowStateSpec:
    """The state of a row in a gated delta net or a Mamba-2 layer (kernels.ops.states), float32 in every
    dtype."""

    shape: DeltaShape | MambaShape
    taps: int  # of the convolution

    def planes(self) -> tuple[Plane, ...]:
        """The tensors of one layer, [rows, ...] each: what is convolved of the last tokens, and the state of
        each head."""
        last = Plane((self.taps - 1, self.shape.channels), torch.float32)
        return last, Plane(self.shape.state, torch.float32)

    def draft_planes(self, drafts: int) -> tuple[Plane, ...]:
        """What a layer keeps of at most so many drafted tokens beside them, until it is known which of these
        are accepted: what they had before the convolution, and what they do to the state of each head
        (kernels.ops.states.update_log)."""
        heads, keys, values = self.shape.state
        convolved = Plane((drafts, self.shape.channels), torch.float32)
        return convolved, Plane((heads, drafts, update_width(keys, values)), torch.float32)

    @property
    def num_tensors(self) -> int:
        """Of one layer in a cache, those of drafts, which may be empty, among them."""
        return len(self.planes()) + len(self.draft_planes(0))

    def bytes_per_row(self, drafts: int = 0) -> int:
        """Of one layer."""
        return sum(plane.bytes_per_block for plane in (*self.planes(), *self.draft_planes(drafts)))
