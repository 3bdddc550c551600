"""The attention part of a block: projections, attention, projection back.

Attention of a layer stores this step's keys and values, then attends to all that its queries may see. Sinks
are a learned score of each head that takes weight and has no value. The output may be gated by the token
itself: output(attention(qkv(x)) * sigmoid(gate(x))).
"""

from abc import ABC, abstractmethod

import torch

from kernels.api import (
    AttentionSpec,
    InputBatch,
    KVCacheSpec,
    LayerCache,
    Rotation,
    RowStateSpec,
    Scoring,
)
from worker.layers.base import Layer, NamedTensors, Split
from worker.layers.linear import ColumnLinear, RowLinear
from worker.layers.norm import HeadNormLayers, NormOfAllHeads, RMSNorm, UnitNorm
from worker.parallel import Placement


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
        bidirectional: bool = False,
        whole_media: bool = False,
    ) -> None:
        """num_heads, num_kv_heads: those of this rank. window: tokens that a query sees, itself included;
        None: all. scale: default D ** -0.5. soft_cap, sinks: see Scoring; the sinks stay where they are.
        chunked, bidirectional, whole_media: see KVCacheSpec."""
        super().__init__()
        self.num_heads = num_heads
        self.spec = AttentionSpec(num_kv_heads, head_dim, window, chunked, bidirectional, whole_media)
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


class Sinks(NamedTensors):
    """The scores of this rank's heads, for kernels.attention.plan.Scoring."""

    def __init__(self, num_heads: int, place: Placement) -> None:
        """num_heads: of all ranks."""
        super().__init__()
        self.split = Split(num_heads, (place.group.slice(num_heads),))
        scores = torch.empty(self.split.num_held, dtype=torch.float32, device=place.device)
        self.scores = torch.nn.Parameter(scores, requires_grad=False)


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
        return self.output(self.attend(x, batch, cache, rotation), batch)

    def attend(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None
    ) -> torch.Tensor:
        """[T, E] -> [T, H * D], of the heads of this rank."""
        qkv, norms = self.qkv(x, batch), self.norms
        if norms is not None and isinstance(norms[0], NormOfAllHeads):
            qkv, norms = self._normed(qkv, *norms), None
        return self.attention(qkv, batch, cache, rotation, norms)

    def _normed(self, qkv: torch.Tensor, query_norm: Layer, key_norm: Layer) -> torch.Tensor:
        """[T, (H + 2 K) * D] -> the same, with queries and keys normed."""
        width, keys = self.attention.spec.head_dim, self.attention.spec.num_kv_heads
        sizes = [heads * width for heads in (self.attention.num_heads, keys, keys)]
        query, key, value = qkv.split_with_sizes(sizes, dim=1)
        return torch.cat((query_norm(query), key_norm(key), value), dim=1)


class GatedAttention(SelfAttention):
    """SelfAttention with a gate for each value of each head."""

    def __init__(
        self,
        qkv: ColumnLinear,
        gate: ColumnLinear,
        attention: Attention,
        output: RowLinear,
        norms: HeadNormLayers | None,
    ) -> None:
        """gate: [T, E] -> [T, H * D]."""
        super().__init__(qkv, attention, output, norms)
        self.gate = gate

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None = None
    ) -> torch.Tensor:
        attended = self.attend(x, batch, cache, rotation)
        gate = self.gate(x, batch)
        gated = self.ops.output_gate(attended, gate)
        return self.output(gated, batch)
