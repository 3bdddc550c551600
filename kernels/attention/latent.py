"""What layers of latent attention keep of a token, and how they plan a step: one vector that is the key of
all heads, and whose first values are their value.

    plane [B, 1, S, R + P]: a compressed latent of R values, and a rotary key of P behind it

Their plans take queries [T, H, R + P] as the latent is read with, rotated, and the tokens' latents
[T, R + P]. They return [T, H, R].
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from kernels.attention.block_plan import BlockStep
from kernels.attention.kv_cache_spec import CacheLayout, Plane, gathering_plan
from kernels.attention.paged_plan import DeviceStep
from kernels.attention.plan import LatentPlan, LayerCache
from kernels.attention.torch_plan import HostStep
from kernels.cpu.attention.block_attention import BlockPlan, block_plan
from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.cpu.attention.latent.attention import latent_attention, latent_kernels, store_latents
from kernels.ops.attention.gather_plan import GatherPlan
from kernels.ops.attention.paged_attention import paged_attention


@dataclass(frozen=True)
class LatentSpec:
    """A latent of every token, which all queries see."""

    rank: int  # R: values of the latent, which are its value too
    rotary_dim: int  # P: values of the rotary key
    num_kv_heads: ClassVar[int] = 1  # for all heads, on every rank
    window: ClassVar[int | None] = None
    chunked: ClassVar[bool] = False
    bidirectional: ClassVar[bool] = False
    whole_media: ClassVar[bool] = False

    @property
    def head_dim(self) -> int:
        """R + P."""
        return self.rank + self.rotary_dim

    def planes(self, block_size: int, dtype: torch.dtype) -> tuple[Plane, ...]:
        return (Plane((1, block_size, self.head_dim), dtype),)

    def block_kernels(
        self, dtype: torch.dtype, block_size: int, group: int, e4m3: bool = False
    ) -> BlockKernels | None:
        """No kernel reads latents of 8 bits."""
        assert not e4m3
        return latent_kernels(dtype, block_size, self.head_dim, group)

    def torch_plan(self, step: HostStep, layout: CacheLayout) -> LatentPlan:
        return TorchLatentPlan(*gathering_plan(self, step, layout), self.rank)

    def block_plan(self, step: BlockStep) -> LatentPlan:
        plan = block_plan(
            *(step.kernels, step.items, step.made, step.block_tables, step.context, step.num_partials),
            window=None,
            shape=(1, self.head_dim),
        )
        return BlockLatentPlan(plan, step.slot_rows, self.rank)

    def paged_plan(self, step: DeviceStep) -> LatentPlan:
        return PagedLatentPlan(step, self.rank)


@dataclass(frozen=True)
class TorchLatentPlan:
    """A LatentPlan of kernels.ops.attention.paged_attention, on latents."""

    plan: GatherPlan
    slot_rows: torch.Tensor  # [T] int64: see kernels.ops.attention.store_kv
    rank: int  # R

    def store_and_attend(
        self, query: torch.Tensor, latents: torch.Tensor, cache: LayerCache, scale: float
    ) -> torch.Tensor:
        (plane,) = cache
        plane.view(-1, plane.shape[3]).index_copy_(0, self.slot_rows, latents)
        mixed = paged_attention(query, plane, plane, self.plan, scale)
        return mixed[..., : self.rank].contiguous()


@dataclass(frozen=True)
class BlockLatentPlan:
    """A LatentPlan of kernels.cpu.attention.latent.attention."""

    plan: BlockPlan
    slot_rows: torch.Tensor  # [T] int64: see kernels.ops.attention.store_kv
    rank: int  # R

    def store_and_attend(
        self, query: torch.Tensor, latents: torch.Tensor, cache: LayerCache, scale: float
    ) -> torch.Tensor:
        (plane,) = cache
        store_latents(self.plan.kernels, latents, plane, self.slot_rows)
        return latent_attention(query, plane, self.plan, scale, self.rank)


@dataclass(frozen=True)
class PagedLatentPlan:
    """A LatentPlan of kernels.triton.attention.latent_attention. Results are undefined for tokens of
    padding."""

    step: DeviceStep
    rank: int  # R

    def store_and_attend(
        self, query: torch.Tensor, latents: torch.Tensor, cache: LayerCache, scale: float
    ) -> torch.Tensor:
        (plane,) = cache
        self.step.kernels.store_latents(latents, self.step.slots, plane)
        return self.step.kernels.attend_to_latents(query, plane, self.step.batch, scale, self.rank)
