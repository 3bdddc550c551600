"""ERNIE 4.5 (dense): Llama with neighbouring pairs rotated, and one field for all biases."""

from typing import Any

from worker.config.decoder import DecoderConfig, DecoderFamily, Spelling, read_decoder
from worker.config.hf_config import Fields
from worker.config.names import NAMES
from worker.config.rope import RopeDefaults

_SPELLING = Spelling(
    max_position=131072,
    head_dim=128,
    default_norm_eps=1e-5,
    tied=True,
    rope=RopeDefaults(theta=500_000.0, interleaved=True),
)


def read_ernie_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    values, bias = read_decoder(fields, common, _SPELLING), fields.boolean("use_bias", False)
    return DecoderConfig(**values, qkv_bias=bias, output_bias=bias, mlp_bias=bias)


ERNIE = DecoderFamily(read=read_ernie_config, names=NAMES)
