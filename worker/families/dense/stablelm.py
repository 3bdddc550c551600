"""StableLM: layer norms, a quarter of each head rotated, and both parts of a block side by side where the
file says so."""

from typing import Any

from worker.config.decoder import DecoderConfig, DecoderFamily, NormKind, NormPlace, Spelling, read_decoder
from worker.config.hf_config import Fields
from worker.config.names import NAMES
from worker.config.rope import RopeDefaults

_SPELLING = Spelling(
    max_position=4096,
    norm_eps="layer_norm_eps",
    default_norm_eps=1e-5,
    rope=RopeDefaults(partial=0.25),
)


def read_stablelm_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    parallel = fields.boolean("use_parallel_residual", False)
    return DecoderConfig(
        **read_decoder(fields, common, _SPELLING),
        norm_kind=NormKind.LAYER,
        norm_place=NormPlace.PARALLEL if parallel else NormPlace.BEFORE,
        qkv_bias=fields.boolean("use_qkv_bias", False),
    )


STABLELM = DecoderFamily(read=read_stablelm_config, names=NAMES, only={"qk_layernorm": False})
