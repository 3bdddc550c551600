"""Attention of one layer: stores this step's keys and values, then attends to all that its queries may
see."""

import torch

from kernels.api import AttentionSpec, InputBatch, LayerCache, Rotation, Scoring
from worker.layers.base import Layer
from worker.layers.norm import RMSNorm


class Attention(Layer):
    """Sizes, scale and window of one layer; it has no parameters."""

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        window: int | None = None,
        scale: float | None = None,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
        chunked: bool = False,
    ) -> None:
        """num_heads, num_kv_heads: those of this rank. window: tokens that a query sees, itself included;
        None: all. scale: default D ** -0.5. soft_cap, sinks: see Scoring; the sinks stay where they are.
        chunked: see KVCacheSpec."""
        super().__init__()
        self.num_heads, self.spec = num_heads, AttentionSpec(num_kv_heads, head_dim, window, chunked)
        self.scoring = Scoring(head_dim**-0.5 if scale is None else scale, soft_cap, sinks)

    def forward(
        self,
        qkv: torch.Tensor,
        batch: InputBatch,
        cache: LayerCache,
        rotation: Rotation | None = None,
        norms: tuple[RMSNorm, RMSNorm] | None = None,
    ) -> torch.Tensor:
        """[T, (H + 2 K) * D], the heads of queries, keys and values side by side -> [T, H * D].

        norms: of each query's and each key's head, applied before the rotation.
        """
        heads = qkv.view(qkv.shape[0], -1, self.spec.head_dim)
        plan = batch.plan(self.spec)
        return plan.store_and_attend(heads, cache, self.scoring, rotation, norms).flatten(1)
