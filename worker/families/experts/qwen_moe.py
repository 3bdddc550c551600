"""Qwen2-MoE and Qwen3-MoE: Qwen2 and Qwen3 with experts in each layer, or in some; Qwen2-MoE has a gated one
for all tokens besides."""

from typing import Any

from worker.config.decoder import (
    DecoderConfig,
    DecoderFamily,
    HeadNormKind,
    Spelling,
    every,
    read_biases,
    read_decoder,
    read_kinds,
    read_used_window,
    windows_of,
)
from worker.config.experts import ExpertsConfig, has_experts, read_routing, sparse_layers
from worker.config.hf_config import Fields
from worker.config.names import EXPERTS, HEAD_NORMS, NAMES, STACKED, shared_names
from worker.config.rope import RopeDefaults

_ONLY = {"mlp_bias": False, "use_mrope": False}


def read_sparse(
    fields: Fields,
    num_layers: int,
    chosen: int,
    normalized: bool,
    size: int | None = None,
    shared_size: int | None = None,
) -> tuple[ExpertsConfig | None, ...]:
    """Returns the experts of each layer. chosen, size, shared_size: for files that do not say; shared_size
    None: there is no part that all tokens have. Raises StartupError."""
    name = "shared_expert_intermediate_size"
    shared = 0 if shared_size is None else fields.integer(name, shared_size, least=0)
    config = ExpertsConfig(
        routing=read_routing(fields, "num_experts", "num_experts_per_tok", chosen, normalized=normalized),
        intermediate_size=fields.integer("moe_intermediate_size", size),
        shared_size=shared,
        shared_gate=shared > 0,
    )
    return tuple(config if sparse else None for sparse in sparse_layers(fields, num_layers))


def _read_experts(
    fields: Fields, num_layers: int, chosen: int, shared_size: int | None = None
) -> tuple[ExpertsConfig | None, ...]:
    """As read_sparse(), where layers may have no experts."""
    if not has_experts(fields):
        return (None,) * num_layers
    normalized = fields.boolean("norm_topk_prob", False)
    return read_sparse(fields, num_layers, chosen, normalized, shared_size=shared_size)


def _read_qwen2_moe_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(fields, common, Spelling(max_position=32768))
    num_layers = values["num_layers"]
    first = fields.integer("max_window_layers", 28, least=0)
    window = read_used_window(fields)
    alternating = every(2, num_layers)[:first] + ("full_attention",) * max(0, num_layers - first)
    kinds = read_kinds(fields, alternating)
    return DecoderConfig(
        **values | {"windows": windows_of(kinds, window)},
        qkv_bias=fields.boolean("qkv_bias", True),
        experts=_read_experts(fields, num_layers, 4, shared_size=5632),
    )


def _read_qwen3_moe_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    rope = RopeDefaults(allows_sections=True)
    values = read_decoder(fields, common, Spelling(max_position=32768, rope=rope))
    window = read_used_window(fields)
    fields.has("max_window_layers")  # which changes nothing here: all layers have the window, or none
    return DecoderConfig(
        **values | {"windows": (window,) * values["num_layers"]},
        **read_biases(fields),
        head_norms=HeadNormKind.PER_HEAD,
        experts=_read_experts(fields, values["num_layers"], 8),
    )


GATED_SHARED = shared_names("mlp.shared_expert") | {
    "blocks.{layer}.mlp.shared_gate": ("model.layers.{layer}.mlp.shared_expert_gate",)
}
UNUSED_GATE = r"model\.(language_model\.)?layers\.\d+\.mlp\.shared_expert_gate\.weight"
"""Pattern of the gates of shared experts, which change nothing where these have no size."""
_HARMLESS = ("output_router_logits", "router_aux_loss_coef")
QWEN2_MOE = DecoderFamily(
    read=_read_qwen2_moe_config,
    names=NAMES | EXPERTS | GATED_SHARED,
    other_names=STACKED,
    unused=rf"{DecoderFamily.unused}|{UNUSED_GATE}",
    harmless=_HARMLESS,
    only=_ONLY,
)
QWEN3_MOE = DecoderFamily(
    read=_read_qwen3_moe_config,
    names=NAMES | HEAD_NORMS | EXPERTS,
    other_names=STACKED,
    harmless=_HARMLESS,
    only=_ONLY,
)
