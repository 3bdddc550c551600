"""Transformer blocks: attention and feed-forward parts with norms and a residual stream."""

import torch

from worker.attention.plan import LayerCache, Rotation
from worker.layers.base import Layer
from worker.layers.mlp import FeedForward
from worker.layers.norm import Norm
from worker.layers.self_attention import SelfAttention
from worker.lowering.builder import ProgramBuilder
from worker.lowering.rotation import LoweredRotation
from worker.model_input import InputBatch


class Block(Layer):
    """Attention and feed-forward, each behind a norm that also adds to the residual stream.

    forward() and lower() return two values, so call them by name.
    """

    def __init__(
        self,
        attention_norm: Norm,
        attention: SelfAttention,
        mlp_norm: Norm,
        mlp: FeedForward,
    ) -> None:
        super().__init__()
        self.attention_norm, self.attention = attention_norm, attention
        self.mlp_norm, self.mlp = mlp_norm, mlp

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        batch: InputBatch,
        cache: LayerCache,
        rotation: Rotation | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """x: [T, E], what is still to be added to the residual stream [T, E]; None: x is the stream so far.
        Returns the same two."""
        x, residual = self.attention_norm.add(x, residual)
        x, residual = self.mlp_norm.add(self.attention(x, batch, cache, rotation), residual)
        return self.mlp(x, batch), residual

    def lower(
        self,
        builder: ProgramBuilder,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        cache: LayerCache,
        rotation: LoweredRotation | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See forward()."""
        x, residual = self.attention_norm.lower(builder, x, residual)
        attended = self.attention.lower(builder, x, cache, rotation)
        x, residual = self.mlp_norm.lower(builder, attended, residual)
        return self.mlp.lower(builder, x), residual


class PostNormBlock(Block):
    """Attention and feed-forward, each with a residual and then a norm."""

    @property
    def can_lower(self) -> bool:
        """False: programs norm before each part."""
        return False

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        batch: InputBatch,
        cache: LayerCache,
        rotation: Rotation | None = None,
    ) -> tuple[torch.Tensor, None]:
        """x: [T, E], all of the stream. Returns the same."""
        assert residual is None
        x, _ = self.attention_norm.add(self.attention(x, batch, cache, rotation), x)
        x, _ = self.mlp_norm.add(self.mlp(x, batch), x)
        return x, None
