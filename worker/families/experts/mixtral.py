"""Experts in every layer. Mixtral: Mistral else. MiniMax M2: norms of queries and keys, partial rotation, and
a router of sigmoids with a correction. OLMoE: Llama with norms of all queries and of all keys.
gpt-oss: experts with biases and a clamped SwiGLU, attention sinks, windows in every other layer, YaRN.
"""

from typing import Any

from kernels.ops.experts.routing import Score
from worker.config.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    DecoderFamily,
    HeadNormKind,
    Spelling,
    read_biases,
    read_decoder,
    read_kinds,
    read_window,
    windows_of,
)
from worker.config.experts import ClampedSwiglu, ExpertsConfig, read_routing
from worker.config.hf_config import Fields
from worker.config.names import EXPERTS, HEAD_NORMS, NAMES, STACKED, expert_names, stacked_names
from worker.config.rope import RopeDefaults

_MODULE = "block_sparse_moe"
_PARTS = "w1", "w3", "w2"
_STACKED = stacked_names(f"{_MODULE}.experts.gate_up_proj", f"{_MODULE}.experts.down_proj")


def _read_mixtral_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(
        fields, common, Spelling(max_position=131072, default_norm_eps=1e-5, rope=RopeDefaults(theta=1e6))
    )
    routing = read_routing(fields, "num_local_experts", "num_experts_per_tok", 2, normalized=True)
    experts = ExpertsConfig(routing=routing, intermediate_size=values["intermediate_size"])
    windows = (read_window(fields, None),) * values["num_layers"]
    return DecoderConfig(**values | {"windows": windows}, experts=(experts,) * values["num_layers"])


def _read_minimax_m2_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. `rotary_dim` is the older spelling of `partial_rotary_factor`. Raises
    StartupError."""
    head_dim = fields.integer("head_dim", 128)
    partial = fields.integer("rotary_dim", head_dim) / head_dim
    rope = RopeDefaults(theta=5e6, partial=partial)
    spelling = Spelling(max_position=196608, head_dim=128, rope=rope)
    values = read_decoder(fields, common, spelling)
    routing = read_routing(
        fields, "num_local_experts", "num_experts_per_tok", 8, score=Score.SIGMOID, normalized=True
    )
    experts = ExpertsConfig(routing=routing, intermediate_size=values["intermediate_size"], corrected=True)
    return DecoderConfig(
        **values, head_norms=HeadNormKind.FULL_WIDTH, experts=(experts,) * values["num_layers"]
    )


_HARMLESS = ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")
MIXTRAL = DecoderFamily(
    read=_read_mixtral_config,
    names=NAMES | expert_names(_MODULE, "gate", *_PARTS),
    other_names=_STACKED,
    harmless=_HARMLESS,
)
MINIMAX_M2 = DecoderFamily(
    read=_read_minimax_m2_config,
    names=NAMES | HEAD_NORMS | expert_names(_MODULE, "gate", *_PARTS, "e_score_correction_bias"),
    other_names=_STACKED,
    harmless=(*_HARMLESS, "mtp_transformer_layers", "num_mtp_modules"),
    only={
        "use_qk_norm": True,
        "qk_norm_type": "per_layer",
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
    },
)


def _read_olmoe_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(fields, common, Spelling(max_position=4096, default_norm_eps=1e-5))
    normalized = fields.boolean("norm_topk_prob", False)
    routing = read_routing(fields, "num_experts", "num_experts_per_tok", 8, normalized=normalized)
    experts = ExpertsConfig(routing=routing, intermediate_size=values["intermediate_size"])
    return DecoderConfig(
        **values,
        **read_biases(fields),
        head_norms=HeadNormKind.FULL_WIDTH,
        experts=(experts,) * values["num_layers"],
    )


OLMOE = DecoderFamily(
    read=_read_olmoe_config,
    names=NAMES | HEAD_NORMS | EXPERTS,
    other_names=STACKED,
    harmless=("output_router_logits", "router_aux_loss_coef"),
    only={"clip_qkv": None},
)


def _read_gpt_oss_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    if not fields.has("rope_parameters") and not fields.has("rope_scaling"):
        raise fields.wrong("rope_scaling", "must say how positions become angles")
    rope = RopeDefaults(theta=150_000.0)
    values = read_decoder(
        fields, common, Spelling(max_position=131072, head_dim=64, default_norm_eps=1e-5, rope=rope)
    )
    num_layers = values["num_layers"]
    kinds = read_kinds(fields, tuple(FULL if layer % 2 else SLIDING for layer in range(num_layers)))
    experts = ExpertsConfig(
        routing=read_routing(
            fields, "num_local_experts", "num_experts_per_tok", 4, score=Score.SOFTMAX_OF_CHOSEN
        ),
        intermediate_size=values["intermediate_size"],
        router_bias=True,
        bias=True,
        swiglu=ClampedSwiglu(fields.number("swiglu_alpha", 1.702), fields.number("swiglu_limit", 7.0)),
        transposed=True,
        alternating=True,
    )
    return DecoderConfig(
        **values | {"windows": windows_of(kinds, read_window(fields, 128))},
        **read_biases(fields, True),
        sinks=True,
        experts=(experts,) * num_layers,
    )


_GPT_OSS_STACKED = stacked_names(
    *("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    *("mlp.experts.gate_up_proj_bias", "mlp.experts.down_proj_bias"),
)
GPT_OSS = DecoderFamily(
    read=_read_gpt_oss_config,
    names=NAMES
    | {
        "blocks.{layer}.mlp.router": ("model.layers.{layer}.mlp.router",),
        "blocks.{layer}.attention.sinks": ("model.layers.{layer}.self_attn.sinks",),
    }
    | _GPT_OSS_STACKED,
    harmless=(
        *("output_router_logits", "router_aux_loss_coef", "initial_context_length", "experts_per_token"),
    ),
)
