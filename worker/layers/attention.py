"""Attention of one layer: stores this step's keys and values, then looks at all of them."""

from dataclasses import dataclass

import torch

from kernels.cpu.attention.block_attention import BlockPlan, block_attention
from kernels.ops.attention.paged_attention import paged_attention
from kernels.ops.attention.store_kv import store_kv
from kernels.triton.attention.paged_kernels import PagedPlan
from worker.layers.norm import RMSNorm
from worker.layers.rotary import Rotation
from worker.model_input import InputBatch


@dataclass(frozen=True)
class LayerCache:
    """The part of the KV cache that belongs to one layer."""

    key: torch.Tensor  # [B, K, S, D]
    value: torch.Tensor  # [B, K, S, D]


class Attention:
    """Without parameters of its own: shapes, scale and the layer's window."""

    def __init__(self, head_dim: int, window: int | None = None, scale: float | None = None) -> None:
        """window: tokens that a query sees, itself included; None: all. scale: default D ** -0.5."""
        self.head_dim, self.window = head_dim, window
        self.scale = head_dim**-0.5 if scale is None else scale

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        batch: InputBatch,
        cache: LayerCache,
        rotation: Rotation | None = None,
        norms: tuple[RMSNorm, RMSNorm] | None = None,
    ) -> torch.Tensor:
        """query [T, H, D], key and value [T, K, D] -> [T, H * D].

        norms, of a query's and a key's head, and rotation: of models that have them; still to be done where
        batch.store_rotates, and done elsewhere.
        """
        plan = batch.attention[self.window]
        if isinstance(plan, PagedPlan):
            caches = batch.slot_rows, cache.key, cache.value
            if rotation is None:
                plan.kernels.store_kv(key, value, *caches)
            else:
                fused = norms and plan.kernels.head_norms(norms[0].weight, norms[1].weight, norms[0].eps)
                plan.kernels.rotary_store_kv(query, key, value, rotation.cos, rotation.sin, *caches, fused)
            return plan.attend(query, cache.key, cache.value, self.scale).flatten(1)
        if isinstance(plan, BlockPlan):
            plan.kernels.store_kv(key, value, cache.key, cache.value, batch.slot_rows)
            return block_attention(query, cache.key, cache.value, plan, self.scale).flatten(1)
        store_kv(key, value, cache.key, cache.value, batch.slot_rows)
        return paged_attention(query, cache.key, cache.value, plan, self.scale).flatten(1)
