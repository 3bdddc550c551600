"""The attention part of a block: projections, attention, projection back."""

from abc import ABC, abstractmethod

import torch

from kernels.api import InputBatch, KVCacheSpec, LayerCache, Rotation, RowStateSpec
from worker.layers.attention.attention import Attention
from worker.layers.attention.sinks import Sinks
from worker.layers.base import Layer
from worker.layers.linear import ColumnLinear, RowLinear
from worker.layers.norm import HeadNormLayers, RMSNorm, UnitNorm


class AttentionPart(Layer, ABC):
    """A block's first part, of any kind of attention."""

    @abstractmethod
    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None = None
    ) -> torch.Tensor:
        """[T, E] -> [T, E]. rotation: None where positions change nothing."""


class StatefulPart(AttentionPart, ABC):
    """A block's first part that keeps one state per row in place of keys and values."""

    state_spec: RowStateSpec


class SideBySide(AttentionPart, ABC):
    """A block's first part of two that read the same input: one attends, the other keeps a state per row. Its
    cache is that of the first, then that of the second."""

    @property
    @abstractmethod
    def specs(self) -> tuple[KVCacheSpec, RowStateSpec]:
        """What both keep."""


class SelfAttention(AttentionPart):
    """output(attention(qkv(x))), with norms of queries and keys where a family has them."""

    def __init__(
        self,
        qkv: ColumnLinear,
        attention: Attention,
        output: RowLinear,
        norms: HeadNormLayers | None = None,
        sinks: Sinks | None = None,
    ) -> None:
        """norms: of queries and of keys; they are called query_norm and key_norm. sinks: those that
        `attention` has."""
        super().__init__()
        self.qkv, self.attention, self.output, self.norms = qkv, attention, output, norms
        self.sinks = sinks
        if norms is not None:
            self.query_norm: RMSNorm | UnitNorm = norms[0]
            self.key_norm: RMSNorm | UnitNorm = norms[1]

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None = None
    ) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        attended = self.attention(self.qkv(x, batch), batch, cache, rotation, self.norms)
        return self.output(attended, batch)
