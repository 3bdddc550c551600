"""Youtu-LLM: DeepSeek-V3 without experts."""

from typing import Any

from worker.config.decoder import DecoderConfig, DecoderFamily, Spelling
from worker.config.hf_config import Fields
from worker.config.latent import read_latent_decoder
from worker.config.names import LATENT, NAMES

_SPELLING = Spelling(max_position=131072, tied=True)


def read_youtu_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    interleaved = fields.boolean("rope_interleave", True)
    return DecoderConfig(**read_latent_decoder(fields, common, _SPELLING, interleaved))


YOUTU = DecoderFamily(
    read=read_youtu_config,
    names=NAMES | LATENT,
    harmless=("embedding_initializer_range",),
    only={"mlp_bias": False},
)
