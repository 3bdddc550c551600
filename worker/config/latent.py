"""Reads the fields of latent attention, which all families spell as DeepSeek-V2 does. Needs no torch."""

import math
from dataclasses import replace
from typing import Any

from worker.config.decoder import LatentConfig, Spelling, read_sizes
from worker.config.hf_config import Fields
from worker.config.rope import RopeDefaults, read_rope, scaled_max_position

LATENT_EPS = 1e-6
"""Of the norms of latents: `rms_norm_eps` is for the residual stream alone."""


def read_latent_decoder(
    fields: Fields, common: dict[str, Any], spelling: Spelling, interleaved: bool
) -> dict[str, Any]:
    """Returns the fields of DecoderConfig of a decoder with latent attention in all layers. interleaved:
    whether neighbouring values are rotated as pairs. Raises StartupError."""
    heads = fields.integer("num_attention_heads")
    if fields.integer("num_key_value_heads", heads) != heads:
        raise fields.wrong("num_key_value_heads", f"a latent has keys of all heads ({heads})")
    latent = LatentConfig(
        rank=fields.integer("kv_lora_rank", 512),
        query_rank=_query_rank(fields),
        plain_dim=fields.integer("qk_nope_head_dim", 128),
        rotary_dim=fields.integer("qk_rope_head_dim", 64),
        value_dim=fields.integer("v_head_dim", 128),
        norm_eps=LATENT_EPS,
    )
    for name, size in (
        ("head_dim", latent.rotary_dim),
        ("qk_head_dim", latent.plain_dim + latent.rotary_dim),
    ):
        fields.expect(name, size, f"{size} follows from qk_nope_head_dim and qk_rope_head_dim")
    values = read_sizes(fields, common, replace(spelling, head_dim=latent.rotary_dim))
    trained = values["max_position"]
    rope = read_rope(fields, trained, latent.rotary_dim, RopeDefaults(interleaved=interleaved))
    bias = fields.boolean("attention_bias", False)
    return values | {
        "latent": latent,
        "num_kv_heads": 1,
        "ropes": (rope,) * values["num_layers"],
        "max_position": scaled_max_position(rope, trained),
        "attention_scale": _scale(fields, latent, rope.kind),
        "output_bias": bias,
    }


def _query_rank(fields: Fields) -> int | None:
    """Returns `q_lora_rank`: null means that queries are not compressed."""
    if "q_lora_rank" in fields and not fields.has("q_lora_rank"):
        return None
    return fields.integer("q_lora_rank", 1536)


def _scale(fields: Fields, latent: LatentConfig, kind: str) -> float:
    """Returns the factor of scores, which grows with the square of a scaled context's `mscale_all_dim`."""
    scale: float = (latent.plain_dim + latent.rotary_dim) ** -0.5
    rope = fields.object("rope_parameters" if fields.has("rope_parameters") else "rope_scaling")
    if kind == "default" or not rope.has("mscale_all_dim"):
        return scale
    factor, growth = rope.number("factor"), rope.number("mscale_all_dim")
    mscale = 0.1 * growth * math.log(factor) + 1.0 if factor > 1 else 1.0
    return scale * mscale * mscale
