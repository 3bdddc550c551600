"""GLM-4: half of each head rotated in neighbouring pairs, and biases. The family of 2024 (glm-4-9b-chat) is
Llama else; that of 0414 has norms around both parts.
"""

from typing import Any

from worker.config.decoder import DecoderConfig, DecoderFamily, NormPlace, Spelling, read_decoder
from worker.config.hf_config import Fields
from worker.config.names import FUSED, NAMES, around
from worker.config.rope import RopeDefaults

_SPELLING = Spelling(
    max_position=131072,
    head_dim=128,
    default_norm_eps=1.5625e-7,
    rope=RopeDefaults(partial=0.5, interleaved=True),
)


def read_glm4_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    values = read_decoder(fields, common, _SPELLING)
    return DecoderConfig(
        **values, norm_place=NormPlace.AROUND, qkv_bias=fields.boolean("attention_bias", True)
    )


_AROUND = NAMES | around("post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm")
GLM4 = DecoderFamily(
    read=read_glm4_config,
    names=_AROUND | {"blocks.{layer}.mlp.gate_up": FUSED["blocks.{layer}.mlp.gate_up"]},
)


def read_glm_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    values = read_decoder(fields, common, _SPELLING)
    return DecoderConfig(**values, qkv_bias=fields.boolean("attention_bias", True))


GLM = DecoderFamily(
    read=read_glm_config,
    names=NAMES | {"blocks.{layer}.mlp.gate_up": FUSED["blocks.{layer}.mlp.gate_up"]},
)
