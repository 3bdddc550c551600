"""Transformer blocks: attention and feed-forward parts with norms and a residual stream."""

from abc import ABC, abstractmethod

import torch

from kernels.api import InputBatch, LayerCache, Rotation
from worker.layers.attention.self_attention import AttentionPart
from worker.layers.base import Layer
from worker.layers.mlp.mlp import FeedForward
from worker.layers.norm import Norm

Stream = tuple[torch.Tensor, torch.Tensor | None]
"""What is still to be added to the residual stream, and the stream, [T, E] each. None: the former is the
stream."""


class AnyBlock(Layer, ABC):
    """One layer of a decoder. forward() returns two values, so call it by name."""

    @abstractmethod
    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        batch: InputBatch,
        cache: LayerCache,
        rotation: Rotation | None = None,
    ) -> Stream:
        """x, residual: a Stream, of which the block returns the next one."""


class Block(AnyBlock):
    """Attention and feed-forward, each behind a norm that also adds to the residual stream."""

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
    ) -> Stream:
        x, residual = self.attention_norm.add(x, residual)
        x, residual = self.mlp_norm.add(self.attention(x, batch, cache, rotation), residual)
        return self.mlp(x, batch), residual


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
    ) -> Stream:
        x, residual = self.attention_norm.add(x, residual)
        attended = self.attention_output_norm(self.attention(x, batch, cache, rotation))
        x, residual = self.mlp_norm.add(attended, residual)
        return self.mlp_output_norm(self.mlp(x, batch)), residual


class OutputNormBlock(AnyBlock):
    """Attention and feed-forward, whose outputs are normed before they are added to the residual stream."""

    def __init__(
        self, attention: AttentionPart, attention_output_norm: Norm, mlp: FeedForward, mlp_output_norm: Norm
    ) -> None:
        super().__init__()
        self.attention, self.attention_output_norm = attention, attention_output_norm
        self.mlp, self.mlp_output_norm = mlp, mlp_output_norm

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        batch: InputBatch,
        cache: LayerCache,
        rotation: Rotation | None = None,
    ) -> Stream:
        stream = x if residual is None else self.ops.scaled_add(x, residual)
        attended = self.attention_output_norm(self.attention(stream, batch, cache, rotation))
        stream = self.ops.scaled_add(attended, stream)
        return self.mlp_output_norm(self.mlp(stream, batch)), stream


class ParallelBlock(AnyBlock):
    """Attention and feed-forward side by side, behind one norm."""

    def __init__(self, attention_norm: Norm, attention: AttentionPart, mlp: FeedForward) -> None:
        super().__init__()
        self.attention_norm, self.attention, self.mlp = attention_norm, attention, mlp

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        batch: InputBatch,
        cache: LayerCache,
        rotation: Rotation | None = None,
    ) -> Stream:
        x, residual = self.attention_norm.add(x, residual)
        attended = self.attention(x, batch, cache, rotation)
        return self.ops.scaled_add(attended, self.mlp(x, batch)), residual


class PostNormBlock(Block):
    """Attention and feed-forward, each with a residual and then a norm. x is all of the stream."""

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        batch: InputBatch,
        cache: LayerCache,
        rotation: Rotation | None = None,
    ) -> Stream:
        assert residual is None
        self.ops.refuse_program("norms come before each part there")
        x, _ = self.attention_norm.add(self.attention(x, batch, cache, rotation), x)
        x, _ = self.mlp_norm.add(self.mlp(x, batch), x)
        return x, None
