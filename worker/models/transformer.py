"""The decoder of all families that a DecoderConfig describes, built from its parts."""

import torch

from kernels.api import InputBatch, LatentSpec, adapters
from worker.config.decoder import DecoderConfig, HeadNormKind, LatentConfig, NormKind, NormPlace
from worker.config.rope import RopeConfig
from worker.layers.attention.rotary import QueryTemperature, Rotary, rotary_order
from worker.layers.attention.self_attention import Attention, AttentionPart, SelfAttention, Sinks
from worker.layers.block import (
    AnyBlock,
    AroundNormBlock,
    Block,
    OutputNormBlock,
    ParallelBlock,
    PostNormBlock,
)
from worker.layers.embedding import PositionEmbedding, VocabEmbedding
from worker.layers.experts.experts import Experts
from worker.layers.latent import CompressedQueries, HeadLinear, HeadMatrix, LatentAttention
from worker.layers.linear import (
    ColumnLinear,
    Part,
    RowLinear,
    column_linear,
    order_of_heads,
    qkv_linear,
)
from worker.layers.mlp import MLP, FeedForward, GatedMLP
from worker.layers.norm import HeadNormLayers, LayerNorm, NoNorm, Norm, NormOfAllHeads, RMSNorm, UnitNorm
from worker.layers.states import AttentionBesideMamba2
from worker.models.decoder import Decoder
from worker.models.media import media_encoder
from worker.models.states import gated_attention, gated_delta_net, mamba2
from worker.parallel import Groups, Placement


class Transformer(Decoder):
    """A decoder of attention and feed-forward parts, without its weights."""

    def __init__(self, config: DecoderConfig, place: Placement) -> None:
        stage = place.stage
        first, last = place.held(stage.is_first), place.held(stage.is_last)

        def embedding() -> VocabEmbedding:
            return VocabEmbedding(config.vocab_size, config.state_size, first)

        rotaries = {
            rope: Rotary(rope, config.head_dim, place.device)
            for rope in dict.fromkeys(config.ropes)
            if rope is not None
        }
        unrotated = None
        if config.temperature is not None:
            sizes = config.max_position, config.head_dim
            unrotated = QueryTemperature(config.temperature, *sizes, place.device)
        super().__init__(
            embedding(),
            [block(config, layer, place.held(stage.has(layer))) for layer in range(config.num_layers)],
            norm(config, last) if config.last_norm and config.norm_place is not NormPlace.LAST else None,
            None if config.tied else embedding(),
            [unrotated if rope is None else rotaries[rope] for rope in config.ropes],
        )
        self.positions = None
        if config.learned_positions:
            table = config.max_position, config.hidden_size
            self.positions = PositionEmbedding(*table, first, config.position_offset)
        self.embedding_factor = embedding_factor(config, place.dtype)
        # As in transformers: where the lookup scales, input embeddings stand for what is scaled already.
        self.lookup_scales = config.rounds_embedding_scale
        self.logit_scale, self.logit_cap = config.logit_scale, config.logit_cap
        if config.vision is not None:
            self.vision = media_encoder(config.vision, config.hidden_size, place.whole)

    def keep(self, groups: Groups, width: int, dtype: torch.dtype) -> None:
        super().keep(groups, width, dtype)
        if not self.stage.is_first:
            self.positions = None

    def embed(self, batch: InputBatch) -> torch.Tensor:
        if self.positions is not None:
            return self.ops.per_step(self._embed_positions, batch, self.positions.width)
        if self.lookup_scales:
            return self.embedding(batch, self.embedding_factor)
        x = super().embed(batch)
        return x if self.embedding_factor == 1 else self.ops.scaled_add(x, None, self.embedding_factor)

    def _embed_positions(self, batch: InputBatch) -> torch.Tensor:
        assert self.positions is not None
        return self.token_vectors(batch) + self.positions(batch)

    def token_vectors(self, batch: InputBatch) -> torch.Tensor:
        """Returns [T, E], to which the vectors of learned positions are added."""
        return self.embedding(batch)

    def logits(self, hidden: torch.Tensor, adapters: adapters.StepAdapters | None = None) -> torch.Tensor:
        logits = super().logits(hidden, adapters)
        if self.logit_scale == 1 and self.logit_cap is None:
            return logits
        return self.ops.adjust_logits(logits, self.logit_scale, self.logit_cap)


def embedding_factor(config: DecoderConfig, dtype: torch.dtype) -> float:
    """Returns the factor of embeddings, in the precision in which the family multiplies."""
    if config.rounds_embedding_scale:
        return torch.tensor(config.embedding_scale, dtype=dtype).item()
    return config.embedding_scale


def norm(config: DecoderConfig, place: Placement, residual_scale: float | None = None) -> Norm:
    """Returns a norm of the residual stream, or of what is added to it. residual_scale: of what is added to
    the stream before; None: that of the configuration."""
    width, eps = config.hidden_size, config.norm_eps
    if config.norm_kind is NormKind.RMS:
        scale = config.residual_scale if residual_scale is None else residual_scale
        return RMSNorm(width, eps, place, config.norm_offset, scale)
    affine = config.norm_kind is not NormKind.LAYER_WITHOUT_PARAMETERS
    return LayerNorm(width, eps, place, affine, has_bias=config.norm_kind is NormKind.LAYER)


def block(config: DecoderConfig, layer: int, place: Placement) -> AnyBlock:
    """Returns a block; its parts are made in the order in which it uses them."""
    if config.norm_place is NormPlace.BEFORE:
        return Block(
            norm(config, place) if layer or config.first_norm else NoNorm(),
            attention(config, layer, place),
            norm(config, place, config.mixed_scale),
            mlp(config, layer, place),
        )
    if config.norm_place is NormPlace.PARALLEL:
        return ParallelBlock(norm(config, place), attention(config, layer, place), mlp(config, layer, place))
    if config.norm_place is NormPlace.LAST:
        return PostNormBlock(
            norm(config, place),
            attention(config, layer, place),
            norm(config, place),
            mlp(config, layer, place),
        )
    if config.norm_place is NormPlace.AFTER:
        return OutputNormBlock(
            attention(config, layer, place),
            norm(config, place),
            mlp(config, layer, place),
            norm(config, place),
        )
    return AroundNormBlock(
        *(norm(config, place), attention(config, layer, place), norm(config, place)),
        *(norm(config, place), mlp(config, layer, place), norm(config, place)),
    )


def attention(config: DecoderConfig, layer: int, place: Placement) -> AttentionPart:
    """Returns the attention part of a block."""
    if config.latent is not None:
        return latent_attention(config, config.latent, layer, place)
    delta = config.deltas[layer] if config.deltas else None
    if delta is not None:
        return gated_delta_net(config, delta, place)
    mamba = config.mambas[layer] if config.mambas else None
    if mamba is None:
        return self_attention(config, layer, place)
    if config.mambas_attend is None:
        return mamba2(config, mamba, place)
    attending = self_attention(config, layer, place)
    return AttentionBesideMamba2(attending, mamba2(config, mamba, place), config.mambas_attend)


def self_attention(config: DecoderConfig, layer: int, place: Placement) -> SelfAttention:
    """Returns attention over keys and values."""
    hidden, heads, kv_heads, head_dim = (
        config.hidden_size,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
    )
    local_heads = place.group.split(heads), len(place.group.units(kv_heads))
    rope = config.ropes[layer]
    window, scale, cap = config.windows[layer], config.attention_scale, config.score_cap
    if config.scale_by_inverse_layer:
        scale = (head_dim**-0.5 if scale is None else scale) / (layer + 1)
    if config.attention_gate:
        attending = Attention(*local_heads, head_dim, window, scale, cap, chunked=config.chunked)
        return gated_attention(config, layer, attending, head_norms(config, rope, place), place)
    order = rotary_order(rope, head_dim)
    qkv = qkv_linear(
        *(hidden, heads, kv_heads, head_dim, config.qkv_bias, place),
        transposed=config.transposed,
        head_order=order,
    )
    sinks = Sinks(heads, place) if config.sinks else None
    scores = None if sinks is None else sinks.scores
    return SelfAttention(
        qkv,
        Attention(
            *(*local_heads, head_dim, window, scale, cap, scores, config.chunked, config.bidirectional),
            whole_media=config.whole_images[layer] if config.whole_images else False,
        ),
        RowLinear(heads * head_dim, hidden, config.output_bias, place, config.transposed, heads),
        head_norms(config, rope, place),
        sinks,
    )


def head_norms(config: DecoderConfig, rope: RopeConfig | None, place: Placement) -> HeadNormLayers | None:
    """Returns the norms of queries and of keys."""
    if config.head_norms is HeadNormKind.NONE:
        return None
    if config.head_norms is HeadNormKind.ROTATED:
        sizes = config.head_dim, config.norm_eps, place
        return None if rope is None else (UnitNorm(*sizes), UnitNorm(*sizes))
    order, offset = rotary_order(rope, config.head_dim), config.norm_offset

    def over(heads: int) -> RMSNorm:
        heads = heads if config.head_norms is HeadNormKind.FULL_WIDTH else 1
        every = order_of_heads(order, heads)
        if heads > 1 and place.group.size > 1:
            return NormOfAllHeads(heads, config.head_dim, config.norm_eps, place, offset, every)
        return RMSNorm(heads * config.head_dim, config.norm_eps, place, offset, order=every)

    return over(config.num_heads), over(config.num_kv_heads)


def mlp(config: DecoderConfig, layer: int, place: Placement) -> FeedForward:
    """Returns the feed-forward part of a block."""
    experts = config.experts[layer] if config.experts else None
    if experts is not None:
        return Experts(experts, config.hidden_size, config.activation, place)
    hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
    if not config.gated:
        up = column_linear(hidden, (inner,), bias, place, config.transposed)
        return MLP(up, RowLinear(inner, hidden, bias, place, config.transposed), config.activation)
    gate_up = column_linear(hidden, (inner, inner), bias, place)
    return GatedMLP(gate_up, RowLinear(inner, hidden, bias, place), config.activation, config.gate_scale)


def latent_attention(
    config: DecoderConfig, latent: LatentConfig, layer: int, place: Placement
) -> LatentAttention:
    """Returns the attention part of a block over latents.

    Rows of query and latent projections have the order that LatentAttention reads: rotary parts in the order
    in which kernels rotate. Biases are those of `output_bias`: of the projections that compress, and of the
    last one.
    """
    hidden, heads, group = config.hidden_size, config.num_heads, place.group
    rotary = rotary_order(config.ropes[layer], latent.rotary_dim) or tuple(range(latent.rotary_dim))
    rank, bias = latent.rank, config.output_bias
    kept = rank + latent.rotary_dim
    order = (*range(rank), *(rank + value for value in rotary))
    up_rows = latent.plain_dim + latent.value_dim  # of a head, in the matrix that expands latents
    stored, local = (heads * up_rows, rank), range(heads)[group.slice(heads)]

    def matrices(first: int, length: int, transposed: bool) -> HeadLinear:
        starts = (head * up_rows + first for head in local)
        rows = (slice(start, start + length) for start in starts)
        return HeadLinear([HeadMatrix(of_head, stored, place, transposed) for of_head in rows], place)

    return LatentAttention(
        _queries(config, latent, rotary, place),
        ColumnLinear(hidden, (Part(kept, slice(0, kept), order),), bias, place),
        RMSNorm(rank, latent.norm_eps, place),
        matrices(0, latent.plain_dim, transposed=True),
        matrices(latent.plain_dim, latent.value_dim, transposed=False),
        RowLinear(heads * latent.value_dim, hidden, bias, place, units=heads),
        LatentSpec(rank, latent.rotary_dim),
        config.attention_scale or (latent.plain_dim + latent.rotary_dim) ** -0.5,
    )


def _queries(
    config: DecoderConfig, latent: LatentConfig, rotary: tuple[int, ...], place: Placement
) -> ColumnLinear | CompressedQueries:
    """Returns the projections of queries. The checkpoint has a head's plain values before its rotary ones."""
    plain, width = latent.plain_dim, latent.plain_dim + latent.rotary_dim
    length, local = config.num_heads * width, range(place.group.split(config.num_heads))
    order = (
        *(head * width + plain + value for head in local for value in rotary),
        *(head * width + value for head in local for value in range(plain)),
    )
    parts = (Part(length, place.group.slice(length), order),)
    if latent.query_rank is None:
        return ColumnLinear(config.hidden_size, parts, False, place)
    compressed = latent.query_rank
    return CompressedQueries(
        ColumnLinear(
            config.hidden_size, (Part(compressed, slice(0, compressed)),), config.output_bias, place
        ),
        RMSNorm(compressed, latent.norm_eps, place),
        ColumnLinear(compressed, parts, False, place),
    )
