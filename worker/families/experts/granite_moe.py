"""Granite 3 with experts: the factors of Granite, and softmax over the logits of the chosen experts."""

from dataclasses import replace
from typing import Any

from kernels.ops.experts.routing import Score
from worker.config.decoder import DecoderConfig, DecoderFamily
from worker.config.experts import ExpertsConfig, read_routing
from worker.config.hf_config import Fields
from worker.config.names import NAMES, stacked_names
from worker.families.dense.granite import read_granite_config

_MODULE = "block_sparse_moe"
_ROUTER = "blocks.{layer}.mlp.router"
EXPERT_NAMES = {_ROUTER: (f"model.layers.{{layer}}.{_MODULE}.router.layer",)} | stacked_names(
    f"{_MODULE}.input_linear.weight", f"{_MODULE}.output_linear.weight"
)
OTHER_NAMES = {_ROUTER: (f"model.layers.{{layer}}.{_MODULE}.router",)} | stacked_names(
    f"{_MODULE}.experts.gate_up_proj", f"{_MODULE}.experts.down_proj"
)
"""As transformers holds them."""
HARMLESS = ("output_router_logits", "router_aux_loss_coef")


def read_granite_moe_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    config = read_granite_config(fields, common)
    routing = read_routing(
        fields, "num_local_experts", "num_experts_per_tok", 2, score=Score.SOFTMAX_OF_CHOSEN
    )
    experts = ExpertsConfig(routing=routing, intermediate_size=config.intermediate_size)
    return replace(config, experts=(experts,) * config.num_layers)


GRANITE_MOE = DecoderFamily(
    read=read_granite_moe_config,
    names=NAMES | EXPERT_NAMES,
    other_names=OTHER_NAMES,
    harmless=HARMLESS,
    only={"mlp_bias": False},
)
