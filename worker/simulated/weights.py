"""Counts the weights of a model from its configuration."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from worker.config.decoder import DecoderConfig, DeltaConfig, HeadNormKind, LatentConfig, NormKind, NormPlace
from worker.config.experts import ExpertsConfig
from worker.config.gpt2 import GPT2Config
from worker.config.hf_config import ModelConfig
from worker.config.opt import POSITION_OFFSET, OPTConfig


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
    layers = [_count_delta(config, delta) if delta else attention for delta in config.deltas]
    layers = layers or [attention] * config.num_layers
    norm = 2 * e if config.norm_kind is NormKind.LAYER else e
    norms = config.num_layers * _NORMS[config.norm_place] * norm
    parts = [_count_experts(config, experts) for experts in config.experts if experts is not None]
    parts += [_count_dense(config)] * (config.num_layers - len(parts))
    multiplied, held = (sum(counts) for counts in zip(*parts, strict=True))
    tables = v * e * (1 if config.tied else 2)
    total = sum(map(sum, layers)) + norms + held + norm + tables
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


_NORMS = {NormPlace.BEFORE: 2, NormPlace.AFTER: 2, NormPlace.AROUND: 4, NormPlace.PARALLEL: 1}
_HEADS_NORMED: dict[HeadNormKind, Callable[[int, int], int]] = {
    HeadNormKind.NONE: lambda heads, kv_heads: 0,
    HeadNormKind.PER_HEAD: lambda heads, kv_heads: 2,
    HeadNormKind.FULL_WIDTH: lambda heads, kv_heads: heads + kv_heads,
}


def _count_gpt2(config: GPT2Config) -> WeightCounts:
    e, i, v = config.hidden_size, config.inner_size, config.vocab_size
    matrices = 4 * e * e + 2 * e * i
    biases_and_norms = 4 * e + i + e + 4 * e
    tables = v * e * (1 if config.tied else 2) + config.max_position * e
    return WeightCounts(matrices, v * e, config.num_layers * (matrices + biases_and_norms) + 2 * e + tables)


def _count_opt(config: OPTConfig) -> WeightCounts:
    e, i, n, v = config.hidden_size, config.ffn_size, config.embedding_size, config.vocab_size
    matrices = 4 * e * e + 2 * e * i
    biases = config.bias * (4 * e + i + e)
    norms = config.norm_affine * 4 * e
    final_norm = config.norm_affine * config.final_norm * 2 * e
    projections = 2 * n * e if n != e else 0
    tables = v * n * (1 if config.tied else 2) + (config.max_position + POSITION_OFFSET) * e
    layers = config.num_layers * (matrices + biases + norms)
    return WeightCounts(matrices, v * n, layers + final_norm + projections + tables)


_COUNTERS: dict[type[ModelConfig], Callable[[Any], WeightCounts]] = {
    DecoderConfig: _count_decoder,
    GPT2Config: _count_gpt2,
    OPTConfig: _count_opt,
}
"""By the configuration class of the family's reader in worker.config."""
