"""Seed-OSS: Llama with biases on query, key and value."""

from typing import Any

from worker.config.decoder import DecoderConfig, DecoderFamily, Spelling, read_decoder
from worker.config.hf_config import Fields
from worker.config.names import NAMES


def read_seed_oss_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    return DecoderConfig(
        **read_decoder(fields, common, Spelling(max_position=524288, head_dim=128)),
        qkv_bias=fields.boolean("attention_bias", True),
        output_bias=fields.boolean("attention_out_bias", False),
        mlp_bias=fields.boolean("mlp_bias", False),
    )


SEED_OSS = DecoderFamily(read=read_seed_oss_config, names=NAMES)
