"""gpt-oss: experts with biases and a clamped SwiGLU, attention sinks, windows in every other layer, YaRN."""

from typing import Any

from kernels.ops.experts.routing import Score
from worker.config.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    DecoderFamily,
    Spelling,
    read_decoder,
    read_kinds,
    read_window,
    windows_of,
)
from worker.config.experts import ClampedSwiglu, ExpertsConfig, read_routing
from worker.config.hf_config import Fields
from worker.config.names import NAMES, stacked_names
from worker.config.rope import RopeDefaults


def read_gpt_oss_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
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
    bias = fields.boolean("attention_bias", True)
    return DecoderConfig(
        **values | {"windows": windows_of(kinds, read_window(fields, 128))},
        qkv_bias=bias,
        output_bias=bias,
        sinks=True,
        experts=(experts,) * num_layers,
    )


_STACKED = stacked_names(
    *("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    *("mlp.experts.gate_up_proj_bias", "mlp.experts.down_proj_bias"),
)
GPT_OSS = DecoderFamily(
    read=read_gpt_oss_config,
    names=NAMES
    | {
        "blocks.{layer}.mlp.router": ("model.layers.{layer}.mlp.router",),
        "blocks.{layer}.attention.sinks": ("model.layers.{layer}.self_attn.sinks",),
    }
    | _STACKED,
    harmless=(
        *("output_router_logits", "router_aux_loss_coef", "initial_context_length", "experts_per_token"),
    ),
)
