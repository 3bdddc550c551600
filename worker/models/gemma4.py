"""Gemma 4's text decoder, layer by layer."""

from collections.abc import Sequence

import torch

from kernels.api import AttentionSpec, InputBatch, LayerCache, adapters
from worker.config.gemma4 import Gemma4Config
from worker.layers.attention.rotary import Rotary
from worker.layers.attention.self_attention import Attention
from worker.layers.embedding import VocabEmbedding
from worker.layers.gemma4 import (
    Gemma4Block,
    Mixture,
    NormedValuesAttention,
    PerLayerInputs,
    PerLayerPart,
    ScaledExperts,
    SharedAttention,
    StoredTensor,
)
from worker.layers.linear import ColumnLinear, Part, RowLinear, column_linear
from worker.layers.mlp import GatedActivation, GatedMLP
from worker.layers.norm import RMSNorm, UnitNorm
from worker.models.media import media_encoder
from worker.models.staged import StagedModel
from worker.models.transformer import embedding_factor
from worker.parallel import Groups, Placement


class Gemma4Model(StagedModel):
    """A decoder without its weights. Its steps are computed layer by layer. Layers of a stage read keys and
    values of that stage alone; the vectors that layers have of tokens are made by stage 0, and handed on."""

    layers: tuple[Gemma4Block, ...]

    def __init__(self, config: Gemma4Config, place: Placement) -> None:
        super().__init__()
        vocab, hidden, stage = config.vocab_size, config.hidden_size, place.stage
        first, last = place.held(stage.is_first), place.held(stage.is_last)
        self.embedding = VocabEmbedding(vocab, hidden, first)
        self.embedding_factor = embedding_factor(config, place.dtype)
        self.per_layer = None
        if config.layer_width:
            sizes = config.layer_vocab, config.num_layers, config.layer_width
            self.per_layer = PerLayerInputs(sizes, hidden, config.norm_eps, config.pad_token, first)
        layers = range(config.num_layers)
        kinds = [(config.ropes[layer], config.kv_sizes(layer)[1]) for layer in layers]
        rotaries = {
            (rope, size): Rotary(rope, size, place.device)
            for rope, size in dict.fromkeys(kinds)
            if rope is not None
        }
        self.hold(
            [block(config, layer, place.held(stage.has(layer))) for layer in layers],
            [rotaries[rope, size] for rope, size in kinds if rope is not None],
            RMSNorm(hidden, config.norm_eps, last),
            self.embedding if config.tied else VocabEmbedding(vocab, hidden, first),
        )
        own = [layer for layer in layers if config.source_of(layer) == layer and stage.has(layer)]
        self.cache_of = tuple(own.index(config.source_of(layer)) for layer in layers[stage.layers])
        self.layer_width, self.num_layers = config.layer_width, config.num_layers
        self.logit_cap = config.logit_cap
        if config.vision is not None:
            self.vision = media_encoder(config.vision, hidden, place.whole)

    def keep(self, groups: Groups, width: int, dtype: torch.dtype) -> None:
        super().keep(groups, width, dtype)
        if not self.stage.is_first:
            self.per_layer = None

    def forward(self, batch: InputBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        """caches: one per layer that keeps keys and values."""
        rotations = {rotary: rotary.rotation(batch) for rotary in self._distinct_rotaries()}
        x, inputs = self._input(batch)
        columns = zip(self.layers, self.cache_of, self.rotary_of, strict=True)
        for number, (layer, cache, rotary) in enumerate(columns):
            own = None if inputs is None else inputs[:, number]
            assert rotary is not None
            x = layer(x, own, batch, caches[cache], rotations[rotary])
            if self.capturing is not None:
                self.capturing(self.first_layer + number + 1, x, None)
        if self.handover is not None and not self.stage.is_last:
            self.handover.send(x)
            if inputs is not None:
                self.ops.send(inputs[:, len(self.layers) :].flatten(1), self.stage.behind)
            return self.handover.receive(len(x))[0] if self.stage.is_first else x
        assert self.norm is not None
        hidden = self.norm(x)
        if self.handover is not None:
            self.handover.send(hidden)
        return hidden

    def _input(self, batch: InputBatch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns the residual stream before the first layer of this stage, [T, E], and the vectors of its
        layers and those of later stages, [T, L, P]; None: layers have none."""
        if self.handover is None or self.stage.is_first:
            x = self.embedding(batch, self.embedding_factor)
            return x, None if self.per_layer is None else self.per_layer(x, batch)
        x, _ = self.handover.receive(len(batch.token_ids))
        if not self.layer_width:
            return x, None
        left = self.num_layers - self.first_layer
        inputs = self.ops.receive((len(x), left * self.layer_width), x.dtype, self.stage.before)
        return x, inputs.view(len(x), left, self.layer_width)

    def logits(self, hidden: torch.Tensor, adapters: adapters.StepAdapters | None = None) -> torch.Tensor:
        logits = super().logits(hidden, adapters)
        return logits if self.logit_cap is None else self.ops.adjust_logits(logits, 1.0, self.logit_cap)

    def attention_heads(self) -> tuple[int, int] | None:
        """Where the heads differ in size alone, the largest."""
        layers = [layer for layer in self.modules() if isinstance(layer, Attention)]
        counts = {(each.spec.num_kv_heads, each.num_heads) for each in layers}
        if len(counts) > 1:
            return None
        return max(each.spec.head_dim for each in layers), layers[0].num_heads // layers[0].spec.num_kv_heads


def block(config: Gemma4Config, layer: int, place: Placement) -> Gemma4Block:
    """Returns a block; its parts are made in the order in which it uses them."""
    hidden, eps = config.hidden_size, config.norm_eps

    def norm() -> RMSNorm:
        return RMSNorm(hidden, eps, place)

    attending = norm(), attention(config, layer, place), norm()
    inner, mixture, per_layer = config.inner_size(layer), None, None
    gate_up = column_linear(hidden, (inner, inner), False, place)
    mlp = GatedMLP(gate_up, RowLinear(inner, hidden, False, place), config.activation)
    feeding = norm(), mlp, norm()
    experts = config.experts[layer] if config.experts else None
    if experts is not None:
        scaled = ScaledExperts(experts, hidden, config.activation, eps, place)
        mixture = Mixture(norm(), norm(), scaled, norm())
    if config.layer_width:
        gate = RowLinear(hidden, config.layer_width, False, place.whole, units=1)
        projection = RowLinear(config.layer_width, hidden, False, place.whole, units=1)
        per_layer = PerLayerPart(gate, GatedActivation(config.activation), projection, norm())
    return Gemma4Block(attending, feeding, mixture, per_layer, StoredTensor((1,), place))


def attention(config: Gemma4Config, layer: int, place: Placement) -> NormedValuesAttention | SharedAttention:
    """Returns the attention part of a block."""
    hidden, heads, eps, bias = config.hidden_size, config.num_heads, config.norm_eps, config.qkv_bias
    kv_heads, size = config.kv_sizes(layer)
    scale, window = config.attention_scale, config.windows[layer]
    whole = config.whole_images[layer] if config.whole_images else False
    assert scale is not None
    group = place.group
    local, held = group.split(heads), group.units(kv_heads)

    def output() -> RowLinear:
        return RowLinear(heads * size, hidden, config.output_bias, place, units=heads)

    if config.source_of(layer) != layer:
        query = column_linear(hidden, (heads * size,), bias, place)
        spec = AttentionSpec(len(held), size, window, whole_media=whole)
        return SharedAttention(query, RMSNorm(size, eps, place), spec, scale, output())
    same = config.keys_are_values and window is None
    keys = Part(kv_heads * size, slice(held.start * size, held.stop * size))
    parts = Part(heads * size, group.slice(heads * size)), *(keys,) * (1 if same else 2)
    return NormedValuesAttention(
        ColumnLinear(hidden, parts, bias, place),
        same,
        Attention(local, len(held), size, window, scale, whole_media=whole),
        output(),
        (RMSNorm(size, eps, place), RMSNorm(size, eps, place)),
        UnitNorm(size, eps, place),
    )
