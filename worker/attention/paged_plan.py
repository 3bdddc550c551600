"""Attention on CUDA: Triton kernels norm, rotate and store in one launch, and attend in another."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernels.triton.attention.paged_kernels import PagedKernels
from worker.attention.plan import HeadNorms, LayerCache, Rotation, split_heads

if TYPE_CHECKING:  # it imports triton
    from kernels.triton.attention.paged_attention import PagedBatch


@dataclass(frozen=True)
class DeviceStep:
    """A step's rows on the device, at addresses that captured graphs keep."""

    kernels: PagedKernels
    batch: "PagedBatch"
    slots: torch.Tensor  # [T] int64: block * block size + offset of each token; padding stores nothing


@dataclass(frozen=True)
class PagedAttentionPlan:
    """An AttentionPlan of kernels.triton.attention. Results are undefined for tokens of padding."""

    step: DeviceStep
    window: int | None

    def store_and_attend(
        self,
        qkv: torch.Tensor,
        cache: LayerCache,
        scale: float,
        rotation: Rotation | None = None,
        norms: HeadNorms | None = None,
    ) -> torch.Tensor:
        """See AttentionPlan."""
        kernels, slots, (key_cache, value_cache) = self.step.kernels, self.step.slots, cache
        query, key, value = split_heads(qkv, key_cache.shape[1])
        if rotation is None:
            kernels.store_kv(key, value, slots, key_cache, value_cache)
        else:
            fused = norms and kernels.head_norms(norms[0].weight, norms[1].weight, norms[0].eps)
            kernels.rotary_store_kv(
                query, key, value, rotation.cos, rotation.sin, slots, key_cache, value_cache, fused
            )
        return kernels.attend(query, key_cache, value_cache, self.step.batch, scale, self.window)
