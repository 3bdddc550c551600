"""The block of Gemma 4: attention with normed values, or over the keys and values of an earlier layer;
experts beside the feed-forward part, both of which read the residual stream; and per-layer embeddings, a
small vector of each token for each layer, made once per step.

    inputs[t, l] = (table[id of t, l] * sqrt(P) + norm((W @ x[t] / sqrt(E))[l])) / sqrt(2)
    layer l:  x + norm(projection(gelu(gate(x)) * inputs[:, l]))

x[t] [E] is the token's embedding; table [V', L * P], W [L * P, E].
"""

import torch
import torch.nn.functional as F

from kernels.api import AttentionSpec, InputBatch, LayerCache, Rotation, Scoring
from worker.config.experts import ExpertsConfig
from worker.layers.attention.self_attention import Attention
from worker.layers.base import Layer, NamedTensors
from worker.layers.experts.experts import Experts
from worker.layers.linear import ColumnLinear, RowLinear
from worker.layers.mlp import GatedActivation, GatedMLP
from worker.layers.norm import RMSNorm, UnitNorm
from worker.parallel import Placement


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


class StoredTensor(NamedTensors):
    """One tensor of the checkpoint as it stands."""

    def __init__(self, shape: tuple[int, ...], place: Placement) -> None:
        super().__init__()
        self.weight = place.empty(*shape)


class PerLayerInputs(Layer):
    """The vectors of all layers. Every rank computes them whole."""

    def __init__(
        self, sizes: tuple[int, int, int], hidden_size: int, norm_eps: float, pad: int, place: Placement
    ) -> None:
        """sizes: V', layers, P. pad: the token that is looked up where vectors stand in place of one."""
        super().__init__()
        vocab_size, self.num_layers, self.width = sizes
        self._pad = pad
        self.table = StoredTensor((vocab_size, self.num_layers * self.width), place)
        self.projection = RowLinear(hidden_size, self.num_layers * self.width, False, place.whole, units=1)
        self.norm = RMSNorm(self.width, norm_eps, place)
        self._table_scale = torch.tensor(self.width**0.5, dtype=place.dtype).item()
        self._projection_scale = hidden_size**-0.5

    def forward(self, embedded: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """embedded: [T, E], the input of the first block -> [T, L, P]."""
        token_ids = batch.token_ids
        if (given := batch.input_embeddings) is not None:
            token_ids = token_ids.index_fill(0, given.tokens, self._pad)
        looked_up = F.embedding(token_ids, self.table.weight) * self._table_scale
        projected = self.projection(embedded, batch) * self._projection_scale
        normed = self.norm(projected.view(len(embedded), self.num_layers, self.width))
        return (normed + looked_up.view(normed.shape)) * 2**-0.5


class PerLayerPart(Layer):
    """What one layer adds to the residual stream."""

    def __init__(
        self, gate: RowLinear, activation: GatedActivation, projection: RowLinear, norm: RMSNorm
    ) -> None:
        """gate: [T, E] -> [T, P]. projection: [T, P] -> [T, E]. Every rank has both whole."""
        super().__init__()
        self.gate, self.activation, self.projection, self.norm = gate, activation, projection, norm

    def forward(self, x: torch.Tensor, inputs: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[T, E], [T, P] -> [T, E]."""
        gated = self.activation(torch.cat((self.gate(x, batch), inputs), dim=1))
        return self.norm(self.projection(gated, batch))


class ScaledExperts(Experts):
    """Experts whose router has a norm of its own, and a factor for each expert."""

    def __init__(
        self, config: ExpertsConfig, width: int, activation: str, norm_eps: float, place: Placement
    ) -> None:
        super().__init__(config, width, activation, place)
        self.router_norm = UnitNorm(width, norm_eps, place)
        self.router_scale = StoredTensor((width,), place)
        self.expert_scale = StoredTensor((config.routing.num_experts,), place)
        self._root = width**-0.5

    def of_stream(self, x: torch.Tensor, stream: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[T, E] -> [T, E]. stream: what the router reads, [T, E]."""
        routed = self.router_norm(stream) * self.router_scale.weight * self._root
        weights, chosen = self.choose(routed, batch)
        return self.mix(x, weights * self.expert_scale.weight.float()[chosen], chosen, batch)


class Mixture(Layer):
    """norm(mlp) + norm(experts(norm(x)))."""

    def __init__(
        self, mlp_norm: RMSNorm, input_norm: RMSNorm, experts: ScaledExperts, output_norm: RMSNorm
    ) -> None:
        super().__init__()
        self.mlp_norm, self.input_norm, self.experts = mlp_norm, input_norm, experts
        self.output_norm = output_norm

    def forward(self, fed: torch.Tensor, stream: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """fed: [T, E], of the feed-forward part. stream: [T, E], before it. Returns [T, E]."""
        mixed = self.experts.of_stream(self.input_norm(stream), stream, batch)
        return self.mlp_norm(fed) + self.output_norm(mixed)


class Gemma4Block(Layer):
    """Attention and feed-forward, each between two norms; what the layer has of each token; a factor of the
    whole stream."""

    def __init__(
        self,
        attention: tuple[RMSNorm, NormedValuesAttention | SharedAttention, RMSNorm],
        mlp: tuple[RMSNorm, GatedMLP, RMSNorm],
        mixture: Mixture | None,
        per_layer: PerLayerPart | None,
        factor: StoredTensor,
    ) -> None:
        """attention, mlp: with the norms before and behind them. factor: [1]."""
        super().__init__()
        self.attention_norm, self.attention, self.attention_output_norm = attention
        self.mlp_norm, self.mlp, self.mlp_output_norm = mlp
        self.mixture, self.per_layer, self.factor = mixture, per_layer, factor

    def forward(
        self,
        x: torch.Tensor,
        inputs: torch.Tensor | None,
        batch: InputBatch,
        cache: LayerCache,
        rotation: Rotation,
    ) -> torch.Tensor:
        """x: [T, E], the residual stream. inputs: [T, P], of this layer. Returns the stream."""
        attended = self.attention(self.attention_norm(x), batch, cache, rotation)
        x = x + self.attention_output_norm(attended)
        fed = self.mlp(self.mlp_norm(x), batch)
        if self.mixture is not None:
            fed = self.mixture(fed, x, batch)
        x = x + self.mlp_output_norm(fed)
        if self.per_layer is not None and inputs is not None:
            x = x + self.per_layer(x, inputs, batch)
        return x * self.factor.weight
