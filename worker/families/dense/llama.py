"""Llama: RMS norms, rotary positions, grouped-query attention, gated feed-forward."""

from typing import Any

from worker.config.decoder import DecoderConfig, DecoderFamily, Spelling, read_decoder
from worker.config.hf_config import Fields
from worker.config.names import NAMES


def read_llama_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    attention_bias = fields.boolean("attention_bias", False)
    return DecoderConfig(
        **read_decoder(fields, common, Spelling(max_position=2048)),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=fields.boolean("mlp_bias", False),
    )


LLAMA = DecoderFamily(read=read_llama_config, names=NAMES)
