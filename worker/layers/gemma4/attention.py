"""Attention with normed values, and attention to the keys and values of an earlier layer."""

import torch

from kernels.api import AttentionSpec, InputBatch, LayerCache, Rotation, Scoring
from worker.layers.attention.attention import Attention
from worker.layers.base import Layer
from worker.layers.linear import ColumnLinear, RowLinear
from worker.layers.norm import RMSNorm, UnitNorm


class NormedValuesAttention(Layer):
    """output(attention(qkv(x))) with norms of queries, keys and values; the latter has no weight."""

    def __init__(
        self,
        projections: ColumnLinear,
        keys_are_values: bool,
        attention: Attention,
        output: RowLinear,
        norms: tuple[RMSNorm, RMSNorm],
        value_norm: UnitNorm,
    ) -> None:
        """projections: of queries, keys and values; of queries and keys where keys are values before the
        norms. norms: of queries and keys."""
        super().__init__()
        self.keys_are_values = keys_are_values
        if keys_are_values:
            self.query_key = projections
        else:
            self.qkv = projections
        self.attention, self.output = attention, output
        (self.query_norm, self.key_norm), self.value_norm = norms, value_norm

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation
    ) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        projected = self.query_key(x, batch) if self.keys_are_values else self.qkv(x, batch)
        heads = projected.view(len(x), -1, self.attention.spec.head_dim)
        queries, count = self.attention.num_heads, self.attention.spec.num_kv_heads
        first = queries if self.keys_are_values else queries + count
        values = self.value_norm(heads[:, first : first + count])
        together = torch.cat((heads[:, : queries + count], values), dim=1).flatten(1)
        norms = self.query_norm, self.key_norm
        return self.output(self.attention(together, batch, cache, rotation, norms), batch)


class SharedAttention(Layer):
    """output(attention(query(x))) over the keys and values that an earlier layer has stored in the same step.
    It keeps nothing in the cache itself."""

    def __init__(
        self, query: ColumnLinear, norm: RMSNorm, spec: AttentionSpec, scale: float, output: RowLinear
    ) -> None:
        """spec: of the layer that stores. norm: of queries."""
        super().__init__()
        self.query, self.query_norm, self.output = query, norm, output
        self.spec, self.scoring = spec, Scoring(scale)

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation
    ) -> torch.Tensor:
        """[T, E] -> [T, E]. cache: of the layer that stores."""
        heads = self.query(x, batch).view(len(x), -1, self.spec.head_dim)
        plan = batch.attention[self.spec]
        query = rotation(self.query_norm(heads))
        return self.output(plan.attend(query, cache, self.scoring).flatten(1), batch)
