"""Granite 3: Llama with factors of embeddings, scores, the residual stream and logits."""

from typing import Any

from worker.config.decoder import DecoderConfig, DecoderFamily, Spelling, read_decoder
from worker.config.hf_config import Fields
from worker.config.names import NAMES


def read_factors(fields: Fields) -> dict[str, float]:
    """Returns the factors, fields of DecoderConfig. Raises StartupError."""
    return {
        "attention_scale": fields.number("attention_multiplier", 1.0),
        "embedding_scale": fields.number("embedding_multiplier", 1.0),
        "residual_scale": fields.number("residual_multiplier", 1.0),
        "logit_scale": 1 / fields.number("logits_scaling", 1.0),
    }


def read_granite_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    bias = fields.boolean("attention_bias", False)
    values: dict[str, Any] = {
        **read_decoder(fields, common, Spelling(max_position=2048)),
        **read_factors(fields),
    }
    return DecoderConfig(
        **values, qkv_bias=bias, output_bias=bias, mlp_bias=fields.boolean("mlp_bias", False)
    )


GRANITE = DecoderFamily(read=read_granite_config, names=NAMES)
