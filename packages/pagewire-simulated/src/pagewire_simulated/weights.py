"""Counts the weights of a model from its configuration."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple

from worker.config.decoder import (
    DecoderConfig,
    DeltaConfig,
    HeadNormKind,
    LatentConfig,
    MambaConfig,
    NormKind,
    NormPlace,
)
from worker.config.encoder import EncoderConfig
from worker.config.experts import ExpertsConfig
from worker.config.gemma4 import Gemma4Config
from worker.config.hf_config import ModelConfig
from worker.config.opt import OPTConfig


@dataclass(frozen=True)
class WeightCounts:
    """Numbers of weights."""

    layer: int
    """In the matrices of one layer, which every token is multiplied by: of experts those of as many as a
    token has. Where layers differ, on average."""
    head: int
    """In the output head, which every token is multiplied by whose logits are needed."""
    total: int
    """In all parameters that are loaded, biases and norms included."""


def count_weights(config: ModelConfig) -> WeightCounts:
    """Returns the counts; shapes are those of the family's file in worker.models."""
    return _COUNTERS[type(config)](config)


def _count_decoder(config: DecoderConfig) -> WeightCounts:
    e, v = config.hidden_size, config.vocab_size
    attention = _count_attention(config) if config.latent is None else _count_latent(config, config.latent)
    layers = [attention] * config.num_layers
    for layer, (delta, mamba) in enumerate(zip_longest(config.deltas, config.mambas)):
        if delta is not None:
            layers[layer] = _count_delta(config, delta)
        elif mamba is not None:
            layers[layer] = _count_mamba(config, mamba)
    norm = _OF_NORM[config.norm_kind] * e
    has_last = config.last_norm and config.norm_place is not NormPlace.LAST
    norms = config.num_layers * _NORMS[config.norm_place] - (not config.first_norm) + has_last
    parts = [_count_experts(config, experts) for experts in config.experts if experts is not None]
    parts += [_count_dense(config)] * (config.num_layers - len(parts))
    multiplied, held = (sum(counts) for counts in zip(*parts, strict=True))
    tables = v * e * (1 if config.tied else 2)
    if config.learned_positions:
        tables += (config.max_position + config.position_offset) * e
    total = sum(map(sum, layers)) + norms * norm + held + tables
    multiplied += sum(layer.matrices for layer in layers)
    return WeightCounts(multiplied // config.num_layers, v * e, total)


def _count_dense(config: DecoderConfig) -> tuple[int, int]:
    """Returns the weights in the matrices of a feed-forward part, and those with biases."""
    e, i, ups = config.hidden_size, config.intermediate_size, 2 if config.gated else 1
    matrices = (ups + 1) * e * i
    return matrices, matrices + config.mlp_bias * (ups * i + e)


def _count_experts(config: DecoderConfig, experts: ExpertsConfig) -> tuple[int, int]:
    """Returns the weights that a token is multiplied by, and all that are held."""
    e, i, routing = config.hidden_size, experts.intermediate_size, experts.routing
    count = routing.num_experts
    shared = 3 * e * experts.shared_size + experts.shared_gate * e
    router, biases = count * e, count * (experts.router_bias + experts.corrected + experts.bias * (2 * i + e))
    return (
        router + routing.top_k * 3 * e * i + shared,
        router + count * 3 * e * i + shared + biases,
    )


class _AttentionCounts(NamedTuple):
    """Numbers of weights of one layer's attention."""

    matrices: int
    biases: int
    norms: int


def _count_attention(config: DecoderConfig) -> _AttentionCounts:
    e, d, heads, kv_heads = config.hidden_size, config.head_dim, config.num_heads, config.num_kv_heads
    qkv = (heads * (2 if config.attention_gate else 1) + 2 * kv_heads) * d
    return _AttentionCounts(
        e * qkv + heads * d * e,
        config.qkv_bias * qkv + config.output_bias * e + config.sinks * heads,
        _HEADS_NORMED[config.head_norms](heads, kv_heads) * d,
    )


def _count_latent(config: DecoderConfig, latent: LatentConfig) -> _AttentionCounts:
    e, heads, compressed = config.hidden_size, config.num_heads, latent.query_rank or 0
    kept, queries = latent.rank + latent.rotary_dim, heads * (latent.plain_dim + latent.rotary_dim)
    ups = latent.rank * heads * (latent.plain_dim + latent.value_dim)
    to_queries = compressed * (e + queries) if compressed else e * queries
    return _AttentionCounts(
        to_queries + e * kept + ups + heads * latent.value_dim * e,
        config.output_bias * (compressed + kept + e),
        compressed + latent.rank,
    )


def _count_delta(config: DecoderConfig, delta: DeltaConfig) -> _AttentionCounts:
    values, heads = delta.value_heads * delta.value_dim, delta.value_heads
    channels = 2 * delta.key_heads * delta.key_dim + values
    return _AttentionCounts(
        config.hidden_size * (channels + 2 * values + 2 * heads),
        channels * delta.taps + 2 * heads,
        delta.value_dim,
    )


def _count_mamba(config: DecoderConfig, mamba: MambaConfig) -> _AttentionCounts:
    values, bias = mamba.heads * mamba.head_dim, mamba.projection_bias
    channels = values + 2 * mamba.groups * mamba.state_size
    projected = values + channels + mamba.heads
    return _AttentionCounts(
        config.hidden_size * (projected + values),
        channels * (mamba.taps + mamba.convolution_bias)
        + 3 * mamba.heads
        + bias * (projected + config.hidden_size),
        values,
    )


_OF_NORM = {
    NormKind.RMS: 1,
    NormKind.LAYER: 2,
    NormKind.LAYER_WITHOUT_BIAS: 1,
    NormKind.LAYER_WITHOUT_PARAMETERS: 0,
}
"""Vectors of a norm of the residual stream."""
_NORMS = {
    NormPlace.BEFORE: 2,
    NormPlace.AFTER: 2,
    NormPlace.LAST: 2,
    NormPlace.AROUND: 4,
    NormPlace.PARALLEL: 1,
}
_HEADS_NORMED: dict[HeadNormKind, Callable[[int, int], int]] = {
    HeadNormKind.NONE: lambda heads, kv_heads: 0,
    HeadNormKind.PER_HEAD: lambda heads, kv_heads: 2,
    HeadNormKind.ROTATED: lambda heads, kv_heads: 0,
    HeadNormKind.FULL_WIDTH: lambda heads, kv_heads: heads + kv_heads,
}


def _count_encoder(config: EncoderConfig) -> WeightCounts:
    """The embedding has types of tokens, and a norm."""
    counts, norm = _count_decoder(config), _OF_NORM[config.norm_kind]
    return replace(counts, total=counts.total + (config.num_token_types + norm) * config.hidden_size)


def _count_opt(config: OPTConfig) -> WeightCounts:
    counts, e, n = _count_decoder(config), config.hidden_size, config.embedding_size
    tables = (1 if config.tied else 2) * config.vocab_size
    narrower = tables * (e - n) - (2 * n * e if n != e else 0)
    return replace(counts, head=config.vocab_size * n, total=counts.total - narrower)


def _count_gemma4(config: Gemma4Config) -> WeightCounts:
    e, v, p, layers = config.hidden_size, config.vocab_size, config.layer_width, range(config.num_layers)
    matrices = others = held_alone = 0
    for layer in layers:
        kv_heads, d = config.kv_sizes(layer)
        kept = config.source_of(layer) == layer
        of_keys = kv_heads * (1 if config.keys_are_values and config.windows[layer] is None else 2) * kept
        qkv = (config.num_heads + of_keys) * d
        matrices += e * qkv + config.num_heads * d * e + 3 * e * config.inner_size(layer) + 2 * e * p
        others += config.qkv_bias * qkv + config.output_bias * e + (1 + kept) * d + 4 * e + (p > 0) * e + 1
    for experts in filter(None, config.experts):
        multiplied, held = _count_experts(config, experts)
        matrices, held_alone = matrices + multiplied, held_alone + held - multiplied
        others += 4 * e + experts.routing.num_experts
    shared = config.num_layers * p * e + (config.num_layers * config.layer_vocab + 1) * p
    tables = v * e * (1 if config.tied else 2)
    total = matrices + others + held_alone + shared + tables + e
    return WeightCounts((matrices + config.num_layers * p * e) // config.num_layers, v * e, total)


_COUNTERS: dict[type[ModelConfig], Callable[[Any], WeightCounts]] = {
    DecoderConfig: _count_decoder,
    EncoderConfig: _count_encoder,
    Gemma4Config: _count_gemma4,
    OPTConfig: _count_opt,
}
"""By the configuration class of the family's reader in worker.config."""
