"""Gemma 1, 2 and 3 (text): norms around both parts with weights stored as their distance from 1, scaled
embeddings, and windows that alternate with full attention.

Gemma 1 has norms before both parts, and no windows. Gemma 2 caps scores and logits; Gemma 3 norms the heads
of queries and keys in place of that, and rotates by other angles in the layers with a window."""

from dataclasses import replace
from typing import Any

from worker.config.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    DecoderFamily,
    HeadNormKind,
    NormPlace,
    Spelling,
    every,
    read_decoder,
    read_kinds,
    read_sizes,
    read_window,
    windows_of,
)
from worker.config.hf_config import Fields
from worker.config.names import HEAD_NORMS, NAMES, around
from worker.config.rope import RopeConfig, RopeDefaults, read_rope_object

_GLOBAL, _LOCAL = RopeDefaults(theta=1e6), RopeDefaults(theta=10_000.0)


def _spelling(max_position: int) -> Spelling:
    return Spelling(
        max_position=max_position,
        head_dim=256,
        activation="hidden_activation",
        default_activation="gelu_pytorch_tanh",
        tied=True,
    )


def _read_cap(fields: Fields, name: str, default: float | None) -> float | None:
    """Null means none."""
    if fields.has(name):
        return fields.number(name)
    return None if name in fields else default


def _read_gemma(
    fields: Fields, values: dict[str, Any], kinds: tuple[str, ...], caps: tuple[float | None, float | None]
) -> dict[str, Any]:
    """Returns the fields that both have in common. caps: of scores and of logits, by default."""
    bias = fields.boolean("attention_bias", False)
    return values | {
        "windows": windows_of(kinds, read_window(fields, 4096)),
        "qkv_bias": bias,
        "output_bias": bias,
        "norm_place": NormPlace.AROUND,
        "norm_offset": 1.0,
        "attention_scale": fields.number("query_pre_attn_scalar", 256) ** -0.5,
        "embedding_scale": values["hidden_size"] ** 0.5,
        "rounds_embedding_scale": True,
        "score_cap": _read_cap(fields, "attn_logit_softcapping", caps[0]),
        "logit_cap": _read_cap(fields, "final_logit_softcapping", caps[1]),
    }


def read_gemma1_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    spelling = replace(_spelling(8192), activation="hidden_act")
    values, bias = read_decoder(fields, common, spelling), fields.boolean("attention_bias", False)
    if values["activation"] == "gelu":  # first files say so, and mean the form with tanh
        values["activation"] = "gelu_pytorch_tanh"
    return DecoderConfig(
        **values,
        qkv_bias=bias,
        output_bias=bias,
        norm_offset=1.0,
        embedding_scale=values["hidden_size"] ** 0.5,
        rounds_embedding_scale=True,
    )


def read_gemma2_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    values = read_decoder(fields, common, _spelling(8192))
    kinds = read_kinds(fields, every(2, values["num_layers"]))
    return DecoderConfig(**_read_gemma(fields, values, kinds, (50.0, 30.0)))


def read_gemma3_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    values = read_sizes(fields, common, _spelling(131072))
    period = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))
    kinds = read_kinds(fields, every(period, values["num_layers"]))
    values["ropes"] = tuple(map(_read_ropes(fields, values).__getitem__, kinds))
    return DecoderConfig(**_read_gemma(fields, values, kinds, (None, None)), head_norms=HeadNormKind.PER_HEAD)


def _read_ropes(fields: Fields, values: dict[str, Any]) -> dict[str, RopeConfig]:
    """Returns the rotary parameters by kind of layer. Older files have those of full attention alone, and the
    base of the others."""
    sizes = values["max_position"], values["head_dim"]
    if not fields.has("rope_parameters"):
        local = Fields({"rope_theta": fields.number("rope_local_base_freq", 10_000.0)}, "config.json")
        return {
            FULL: read_rope_object(fields.object("rope_scaling"), fields, *sizes, _GLOBAL),
            SLIDING: read_rope_object(local, local, *sizes, _LOCAL),
        }
    parameters = fields.object("rope_parameters")
    parameters.refuse_unknown((FULL, SLIDING))
    return {
        kind: read_rope_object(parameters.object(kind), Fields({}, "config.json"), *sizes, defaults)
        for kind, defaults in ((FULL, _GLOBAL), (SLIDING, _LOCAL))
    }


_NAMES = NAMES | around("pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm")
_CAUSAL = {"use_bidirectional_attention": False}
GEMMA1 = DecoderFamily(read=read_gemma1_config, names=NAMES, harmless=("hidden_activation",), only=_CAUSAL)
GEMMA2 = DecoderFamily(
    read=read_gemma2_config, names=_NAMES, only={"hidden_act": "gelu_pytorch_tanh"} | _CAUSAL
)
GEMMA3 = DecoderFamily(
    read=read_gemma3_config, names=_NAMES | HEAD_NORMS, only={"attn_logit_softcapping": None} | _CAUSAL
)
