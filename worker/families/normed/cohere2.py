"""Cohere 2 (Command R7B, Command A): both parts of a block side by side behind one layer norm without a bias;
layers with a window rotate neighbouring pairs, those without one have no positions; scaled logits."""

from typing import Any

from worker.config.decoder import (
    SLIDING,
    DecoderConfig,
    DecoderFamily,
    NormKind,
    NormPlace,
    Spelling,
    every,
    read_decoder,
    read_kinds,
    read_window,
    windows_of,
)
from worker.config.hf_config import Fields
from worker.config.names import NAMES
from worker.config.rope import RopeDefaults

_SPELLING = Spelling(
    max_position=8192,
    norm_eps="layer_norm_eps",
    default_norm_eps=1e-5,
    tied=True,
    rope=RopeDefaults(interleaved=True),
)


def read_cohere2_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    values = read_decoder(fields, common, _SPELLING)
    period = fields.integer("sliding_window_pattern", fields.integer("layer_switch", 4))
    kinds = read_kinds(fields, every(period, values["num_layers"]))
    window, bias = read_window(fields, 4096), fields.boolean("attention_bias", False)
    pairs = zip(values["ropes"], kinds, strict=True)
    values |= {
        "windows": windows_of(kinds, window),
        "ropes": tuple(rope if kind == SLIDING and window is not None else None for rope, kind in pairs),
    }
    return DecoderConfig(
        **values,
        qkv_bias=bias,
        output_bias=bias,
        norm_kind=NormKind.LAYER_WITHOUT_BIAS,
        norm_place=NormPlace.PARALLEL,
        logit_scale=fields.number("logit_scale", 0.0625),
    )


COHERE2 = DecoderFamily(
    read=read_cohere2_config,
    names=NAMES,
    only={
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "rotary_pct": 1.0,
        "use_embedding_sharing": True,
        "use_gated_activation": True,
        "use_parallel_block": True,
        "use_parallel_embedding": False,
        "use_qk_norm": False,
    },
)
