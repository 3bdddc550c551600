"""GLM-4 of 2024 (glm-4-9b-chat): Llama with half of each head rotated in neighbouring pairs, and biases."""

from typing import Any

from worker.config.decoder import DecoderConfig, DecoderFamily, read_decoder
from worker.config.hf_config import Fields
from worker.config.names import FUSED, NAMES
from worker.families.normed.glm4 import SPELLING


def read_glm_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    values = read_decoder(fields, common, SPELLING)
    return DecoderConfig(**values, qkv_bias=fields.boolean("attention_bias", True))


GLM = DecoderFamily(
    read=read_glm_config,
    names=NAMES | {"blocks.{layer}.mlp.gate_up": FUSED["blocks.{layer}.mlp.gate_up"]},
)
