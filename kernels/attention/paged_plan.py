"""Attention on CUDA: Triton kernels norm, rotate and store in one launch, and attend in another."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from kernels.attention.plan import HeadNorms, LayerCache, Rotation, Scoring, normed_heads, split_heads
from kernels.ops.attention.e4m3 import E4M3
from kernels.triton.attention.paged_kernels import PagedKernels

if TYPE_CHECKING:  # it imports triton
    from kernels.triton.attention.fp8 import KVScales
    from kernels.triton.attention.paged_attention import PagedBatch


@dataclass(frozen=True)
class DeviceStep:
    """A step's rows on the device, at addresses that captured graphs keep."""

    kernels: PagedKernels
    batch: "PagedBatch"
    slots: torch.Tensor  # [T] int64: block * block size + offset of each token; padding stores nothing
    unit_scales: "KVScales"  # of as many heads as any layer has; for a cache of e4m3


@dataclass(frozen=True)
class PagedAttentionPlan:
    """An AttentionPlan of kernels.triton.attention. Results are undefined for tokens of padding."""

    step: DeviceStep
    window: int | None
    chunked: bool = False
    bidirectional: bool = False
    last_seen: torch.Tensor | None = None  # [T]: see with_last_seen()

    def with_last_seen(self, last_seen: torch.Tensor) -> "PagedAttentionPlan":
        return replace(self, last_seen=last_seen)

    def store_and_attend(
        self,
        qkv: torch.Tensor,
        cache: LayerCache,
        scoring: Scoring,
        rotation: Rotation | None = None,
        norms: HeadNorms | None = None,
    ) -> torch.Tensor:
        kernels, slots, (key_cache, value_cache) = self.step.kernels, self.step.slots, cache
        query, key, value = split_heads(qkv, key_cache.shape[1])
        scales = self.step.unit_scales if key_cache.dtype == E4M3 else None
        fused_rotation = rotation is not None and not rotation.queries_only
        fits = fused_rotation and norms is not None and _fits(norms, query.shape[2])
        if norms is not None and not fits:
            query, key = normed_heads(norms[0], query), normed_heads(norms[1], key)
        if rotation is None or rotation.queries_only:
            query = query if rotation is None else rotation(query)
            kernels.store_kv(key, value, slots, key_cache, value_cache, scales)
        else:
            fused = (
                kernels.head_norms(norms[0].weight, norms[1].weight, norms[0].eps)
                if norms is not None and fits
                else None
            )
            kernels.rotary_store_kv(
                query, key, value, rotation.cos, rotation.sin, slots, key_cache, value_cache, fused, scales
            )
        return kernels.attend(
            *(query, key_cache, value_cache, self.step.batch, scoring.scale, self.window, scoring.soft_cap),
            sinks=scoring.sinks,
            scales=scales,
            chunked=self.chunked,
            bidirectional=self.bidirectional,
            last_seen=self.last_seen,
        )


def _fits(norms: HeadNorms, head_dim: int) -> bool:
    """True if the kernel that rotates can norm too: heads by themselves, with weights as they stand."""
    return all(norm.weight.shape[0] == head_dim and norm.offset == 0 for norm in norms)
