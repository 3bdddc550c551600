"""Transformer blocks: attention and feed-forward parts with norms and a residual stream."""

import torch

from worker.attention.plan import LayerCache, Rotation
from worker.layers.attention.self_attention import AttentionPart
from worker.layers.base import Layer
from worker.layers.mlp.mlp import FeedForward
from worker.layers.norm import Norm
from worker.layers.scaled_add import ScaledAdd
from worker.lowering.builder import ProgramBuilder
from worker.lowering.rotation import LoweredRotation
from worker.model_input import InputBatch

OUTPUT = "output"
"""The shared buffer of what a block adds to the residual stream."""


class Block(Layer):
    """Attention and feed-forward, each behind a norm that also adds to the residual stream.

    forward() and lower() return two values, so call them by name.
    """

    def __init__(
        self,
        attention_norm: Norm,
        attention: AttentionPart,
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
        x, residual = self.attention_norm.lower(builder, x, residual)
        attended = self.attention.lower(builder, x, cache, rotation)
        x, residual = self.mlp_norm.lower(builder, attended, residual)
        return self.mlp.lower(builder, x), residual


class AroundNormBlock(Block):
    """Attention and feed-forward, each between two norms."""

    def __init__(
        self,
        attention_norm: Norm,
        attention: AttentionPart,
        attention_output_norm: Norm,
        mlp_norm: Norm,
        mlp: FeedForward,
        mlp_output_norm: Norm,
    ) -> None:
        super().__init__(attention_norm, attention, mlp_norm, mlp)
        self.attention_output_norm, self.mlp_output_norm = attention_output_norm, mlp_output_norm

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        batch: InputBatch,
        cache: LayerCache,
        rotation: Rotation | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        x, residual = self.attention_norm.add(x, residual)
        attended, _ = self.attention_output_norm.add(self.attention(x, batch, cache, rotation), None)
        x, residual = self.mlp_norm.add(attended, residual)
        return self.mlp_output_norm.add(self.mlp(x, batch), None)[0], residual

    def lower(
        self,
        builder: ProgramBuilder,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        cache: LayerCache,
        rotation: LoweredRotation | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = self.attention_norm.lower(builder, x, residual)
        attended = self.attention.lower(builder, x, cache, rotation)
        attended, _ = self.attention_output_norm.lower(builder, attended, None, OUTPUT)
        x, residual = self.mlp_norm.lower(builder, attended, residual)
        return self.mlp_output_norm.lower(builder, self.mlp.lower(builder, x), None, OUTPUT)[0], residual


class OutputNormBlock(Layer):
    """Attention and feed-forward, whose outputs are normed before they are added to the residual stream."""

    def __init__(
        self,
        attention: AttentionPart,
        attention_output_norm: Norm,
        mlp: FeedForward,
        mlp_output_norm: Norm,
        add: ScaledAdd,
    ) -> None:
        super().__init__()
        self.attention, self.attention_output_norm = attention, attention_output_norm
        self.mlp, self.mlp_output_norm, self.add = mlp, mlp_output_norm, add

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        batch: InputBatch,
        cache: LayerCache,
        rotation: Rotation | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        stream = x if residual is None else self.add(x, residual)
        attended, _ = self.attention_output_norm.add(self.attention(stream, batch, cache, rotation), None)
        stream = self.add(attended, stream)
        return self.mlp_output_norm.add(self.mlp(stream, batch), None)[0], stream

    def lower(
        self,
        builder: ProgramBuilder,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        cache: LayerCache,
        rotation: LoweredRotation | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        stream = x if residual is None else self.add.lower(builder, x, residual, residual)
        attended = self.attention.lower(builder, stream, cache, rotation)
        attended, _ = self.attention_output_norm.lower(builder, attended, None, OUTPUT)
        stream = self.add.lower(builder, attended, stream, stream)
        return self.mlp_output_norm.lower(builder, self.mlp.lower(builder, stream), None, OUTPUT)[0], stream


class ParallelBlock(Layer):
    """Attention and feed-forward side by side, behind one norm."""

    def __init__(
        self, attention_norm: Norm, attention: AttentionPart, mlp: FeedForward, add: ScaledAdd
    ) -> None:
        super().__init__()
        self.attention_norm, self.attention, self.mlp, self.add = attention_norm, attention, mlp, add

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        batch: InputBatch,
        cache: LayerCache,
        rotation: Rotation | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        x, residual = self.attention_norm.add(x, residual)
        return self.add(self.attention(x, batch, cache, rotation), self.mlp(x, batch)), residual

    def lower(
        self,
        builder: ProgramBuilder,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        cache: LayerCache,
        rotation: LoweredRotation | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = self.attention_norm.lower(builder, x, residual)
        attended, fed = self.attention.lower(builder, x, cache, rotation), self.mlp.lower(builder, x)
        return self.add.lower(builder, attended, fed, builder.buffers.shared(OUTPUT, x.shape[1])), residual


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
