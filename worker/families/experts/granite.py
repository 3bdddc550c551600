"""Granite 3: Llama with factors of embeddings, scores, the residual stream and logits; with experts, softmax
over the logits of the chosen ones.

Granite 4 has Mamba-2 layers, with attention that knows no positions in some, and experts beside a part that
all tokens have, or that part alone.
"""

from dataclasses import replace
from typing import Any

from kernels.ops.experts.routing import Routing, Score
from worker.config.decoder import DecoderConfig, DecoderFamily, Spelling, read_biases, read_decoder
from worker.config.experts import ExpertsConfig, read_routing
from worker.config.hf_config import Fields
from worker.config.names import NAMES, stacked_names
from worker.config.states import MAMBA_HARMLESS, MAMBA_NAMES, read_linear_kinds, read_mambas


def _read_factors(fields: Fields) -> dict[str, float]:
    """Returns the factors, fields of DecoderConfig. Raises StartupError."""
    return {
        "attention_scale": fields.number("attention_multiplier", 1.0),
        "embedding_scale": fields.number("embedding_multiplier", 1.0),
        "residual_scale": fields.number("residual_multiplier", 1.0),
        "logit_scale": 1 / fields.number("logits_scaling", 1.0),
    }


def _read_granite_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(fields, common, Spelling(max_position=2048)) | _read_factors(fields)
    return DecoderConfig(**values, **read_biases(fields), mlp_bias=fields.boolean("mlp_bias", False))


GRANITE = DecoderFamily(read=_read_granite_config, names=NAMES)


_MODULE = "block_sparse_moe"
_ROUTER = "blocks.{layer}.mlp.router"
_EXPERT_NAMES = {_ROUTER: (f"model.layers.{{layer}}.{_MODULE}.router.layer",)} | stacked_names(
    f"{_MODULE}.input_linear.weight", f"{_MODULE}.output_linear.weight"
)
_OTHER_NAMES = {_ROUTER: (f"model.layers.{{layer}}.{_MODULE}.router",)} | stacked_names(
    f"{_MODULE}.experts.gate_up_proj", f"{_MODULE}.experts.down_proj"
)
"""As transformers holds them."""
_HARMLESS = ("output_router_logits", "router_aux_loss_coef")


def _read_routing(fields: Fields) -> Routing:
    chosen = "num_experts_per_tok"
    return read_routing(fields, "num_local_experts", chosen, 2, score=Score.SOFTMAX_OF_CHOSEN)


def _read_granite_moe_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    config = _read_granite_config(fields, common)
    experts = ExpertsConfig(routing=_read_routing(fields), intermediate_size=config.intermediate_size)
    return replace(config, experts=(experts,) * config.num_layers)


GRANITE_MOE = DecoderFamily(
    read=_read_granite_moe_config,
    names=NAMES | _EXPERT_NAMES,
    other_names=_OTHER_NAMES,
    harmless=_HARMLESS,
    only={"mlp_bias": False},
)


_SHARED = "model.layers.{layer}.shared_mlp"
_HYBRID_SPELLING = Spelling(max_position=2048, intermediate_size="shared_intermediate_size")
_SHARED_NAMES = {
    f"blocks.{{layer}}.mlp.{part}": (f"{_SHARED}.{module}",)
    for prefix in ("", "shared.")
    for part, module in ((f"{prefix}gate_up", "input_linear"), (f"{prefix}down", "output_linear"))
}
"""Of the part that all tokens have: beside experts, or alone."""


def _read_granite_hybrid_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(fields, common, _HYBRID_SPELLING) | _read_factors(fields)
    scans = read_linear_kinds(fields, values["num_layers"])
    rotated = _read_rotation(fields)
    return DecoderConfig(
        **values
        | {
            "mambas": read_mambas(fields, values["hidden_size"], scans),
            "ropes": tuple(
                rope if rotated and not scan else None
                for rope, scan in zip(values["ropes"], scans, strict=True)
            ),
            "experts": _read_experts(fields, values["num_layers"], values["intermediate_size"]),
        },
        **read_biases(fields),
    )


def _read_rotation(fields: Fields) -> bool:
    """Returns whether layers that attend rotate queries and keys."""
    kind = fields.text("position_embedding_type", "nope")
    if kind not in ("rope", "nope"):
        raise fields.wrong("position_embedding_type", "must be rope or nope")
    return kind == "rope"


def _read_experts(fields: Fields, num_layers: int, shared_size: int) -> tuple[ExpertsConfig | None, ...]:
    """Returns the experts of each layer; empty: there are none."""
    if not fields.integer("num_local_experts", 8, least=0):
        fields.has("num_experts_per_tok"), fields.has("intermediate_size")  # count for nothing then
        return ()
    routing, size = _read_routing(fields), fields.integer("intermediate_size")
    experts = ExpertsConfig(routing=routing, intermediate_size=size, shared_size=shared_size)
    return (experts,) * num_layers


GRANITE_HYBRID = DecoderFamily(
    read=_read_granite_hybrid_config,
    names=NAMES | _EXPERT_NAMES | _SHARED_NAMES | MAMBA_NAMES,
    other_names=_OTHER_NAMES,
    harmless=(*_HARMLESS, *MAMBA_HARMLESS, "init_method"),
    only={"hidden_act": "silu", "normalization_function": "rmsnorm"},
)
