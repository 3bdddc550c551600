"""Qwen3.5, dense and with experts: Qwen3-Next with other projections of its gated delta nets. Of checkpoints
that see images the text is computed alone."""

from dataclasses import replace
from typing import Any

from worker.config.decoder import DecoderConfig, DecoderFamily
from worker.config.hf_config import Fields
from worker.config.names import STACKED, beside_images
from worker.families.experts.qwen_moe import UNUSED_GATE
from worker.families.linear.qwen3_next import (
    EXPERT_NAMES,
    HARMLESS,
    MTP,
    ONLY,
    SPELLING,
    delta_names,
    read_experts,
    read_hybrid,
)


def read_qwen3_5_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    return DecoderConfig(**read_hybrid(fields, common, grouped=False))


def read_qwen3_5_moe_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    spelling = replace(SPELLING, intermediate_size="moe_intermediate_size")
    values = read_hybrid(fields, common, grouped=False, spelling=spelling)
    experts = read_experts(fields, values["num_layers"], 8, normalized=True)
    return DecoderConfig(**values, experts=experts)


_NAMES = delta_names("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
_UNUSED = rf"lm_head\.weight|model\.visual\..*|{UNUSED_GATE}|{MTP}"
_ONLY = ONLY | {"attn_output_gate": True, "mamba_ssm_dtype": "float32"}
_HARMLESS = (*HARMLESS, "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
QWEN3_5 = DecoderFamily(
    read=read_qwen3_5_config,
    names=_NAMES,
    unused=_UNUSED,
    harmless=(*_HARMLESS, "mlp_only_layers"),  # no layer has experts
    only=_ONLY,
)
QWEN3_5_MOE = DecoderFamily(
    read=read_qwen3_5_moe_config,
    names=_NAMES | EXPERT_NAMES,
    other_names=STACKED,
    unused=_UNUSED,
    harmless=(*_HARMLESS, "intermediate_size"),  # of no layer
    only=_ONLY,
)


def _beside_images(family: DecoderFamily) -> DecoderFamily:
    """Returns the family of checkpoints in which the decoder is a part, beside what sees images."""
    names, others = beside_images(family.names), beside_images(family.other_names)
    return replace(family, names=names, other_names=others, nested=True)


QWEN3_5_SEEING, QWEN3_5_MOE_SEEING = _beside_images(QWEN3_5), _beside_images(QWEN3_5_MOE)
