"""GLM-4.5 to 4.7 and dots.llm1: experts chosen by sigmoids with a correction, from the best groups; some that
all tokens have; the first layers without."""

from typing import Any

from worker.config.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    DecoderFamily,
    HeadNormKind,
    Spelling,
    read_decoder,
    read_kinds,
    read_window,
    windows_of,
)
from worker.config.experts import ExpertsConfig, read_grouped_routing
from worker.config.hf_config import Fields
from worker.config.names import HEAD_NORMS, NAMES, STACKED, expert_names, shared_names
from worker.config.rope import RopeDefaults


def read_experts(
    fields: Fields, num_layers: int, default_shared: int, default_dense: int, normalized: bool
) -> tuple[ExpertsConfig | None, ...]:
    """Returns the experts of each layer: none in the first `first_k_dense_replace`. Defaults are those of
    fields that are left out. Raises StartupError."""
    size = fields.integer("moe_intermediate_size", 1408)
    config = ExpertsConfig(
        routing=read_grouped_routing(fields, normalized),
        intermediate_size=size,
        corrected=True,
        shared_size=size * fields.integer("n_shared_experts", default_shared, least=0),
    )
    dense = fields.integer("first_k_dense_replace", default_dense, least=0)
    return tuple(None if layer < dense else config for layer in range(num_layers))


def read_glm4_moe_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    rope = RopeDefaults(partial=0.5)
    values = read_decoder(fields, common, Spelling(max_position=131072, default_norm_eps=1e-5, rope=rope))
    normed = fields.boolean("use_qk_norm", False)
    return DecoderConfig(
        **values,
        qkv_bias=fields.boolean("attention_bias", False),
        head_norms=HeadNormKind.PER_HEAD if normed else HeadNormKind.NONE,
        experts=read_experts(fields, values["num_layers"], 1, 1, True),
    )


def read_dots1_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    values = read_decoder(fields, common, Spelling(max_position=2048))
    num_layers = values["num_layers"]
    window, first = read_window(fields, 4096), fields.integer("max_window_layers", 62, least=0)
    kinds = read_kinds(fields, tuple(SLIDING if layer >= first else FULL for layer in range(num_layers)))
    bias = fields.boolean("attention_bias", False)
    return DecoderConfig(
        **values | {"windows": windows_of(kinds, window)},
        qkv_bias=bias,
        output_bias=bias,
        head_norms=HeadNormKind.PER_HEAD,
        experts=read_experts(fields, num_layers, 0, 0, False),
    )


_NAMES = (
    NAMES
    | HEAD_NORMS
    | expert_names("mlp", "gate", "gate_proj", "up_proj", "down_proj", "gate.e_score_correction_bias")
    | shared_names("mlp.shared_experts")
)
_HARMLESS = ("output_router_logits", "router_aux_loss_coef", "num_nextn_predict_layers", "num_mtp_layers")
_ONLY = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
GLM4_MOE = DecoderFamily(
    read=read_glm4_moe_config,
    names=_NAMES,
    other_names=STACKED,
    unused=r"model\.layers\.(?:46|92)\..*|lm_head\.weight",  # the layer that predicts a token more
    harmless=_HARMLESS,
    only=_ONLY,
)
DOTS1 = DecoderFamily(
    read=read_dots1_config, names=_NAMES, other_names=STACKED, harmless=_HARMLESS, only=_ONLY
)
