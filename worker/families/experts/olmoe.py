"""OLMoE: Llama with experts in every layer, and norms of all queries and of all keys."""

from typing import Any

from worker.config.decoder import DecoderConfig, DecoderFamily, HeadNormKind, Spelling, read_decoder
from worker.config.experts import ExpertsConfig, read_routing
from worker.config.hf_config import Fields
from worker.config.names import EXPERTS, HEAD_NORMS, NAMES, STACKED


def read_olmoe_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    values = read_decoder(fields, common, Spelling(max_position=4096, default_norm_eps=1e-5))
    normalized = fields.boolean("norm_topk_prob", False)
    routing = read_routing(fields, "num_experts", "num_experts_per_tok", 8, normalized=normalized)
    experts = ExpertsConfig(routing=routing, intermediate_size=values["intermediate_size"])
    bias = fields.boolean("attention_bias", False)
    return DecoderConfig(
        **values,
        qkv_bias=bias,
        output_bias=bias,
        head_norms=HeadNormKind.FULL_WIDTH,
        experts=(experts,) * values["num_layers"],
    )


OLMOE = DecoderFamily(
    read=read_olmoe_config,
    names=NAMES | HEAD_NORMS | EXPERTS,
    other_names=STACKED,
    harmless=("output_router_logits", "router_aux_loss_coef"),
    only={"clip_qkv": None},
)
