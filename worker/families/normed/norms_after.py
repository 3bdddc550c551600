"""OLMo 2 and 3, EXAONE 4: norms after both parts; Cohere 2: one norm for both.

OLMo has norms of all queries and of all keys; OLMo 3 has windows that alternate with full attention, and
scales the angles of the latter only. EXAONE has norms of heads; where some layers have a window, the others
have no positions.

Cohere 2 (Command R7B, Command A) has both parts of a block side by side behind one layer norm without a bias;
layers with a window rotate neighbouring pairs, those without one have no positions; logits are scaled.
"""

from typing import Any

from worker.config.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    DecoderFamily,
    HeadNormKind,
    NormKind,
    NormPlace,
    Spelling,
    every,
    read_biases,
    read_decoder,
    read_kinds,
    read_sizes,
    read_window,
    windows_of,
)
from worker.config.hf_config import Fields
from worker.config.names import AFTER, HEAD_NORMS, NAMES
from worker.config.rope import RopeDefaults, read_rope_object, scaled_max_position

_SPELLING = Spelling(max_position=2048, default_norm_eps=1e-5)
_OLMO3_ROPE = RopeDefaults(theta=500_000.0)
_NORMS: dict[str, Any] = {"norm_place": NormPlace.AFTER, "head_norms": HeadNormKind.FULL_WIDTH}


def _read_olmo2_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**read_decoder(fields, common, _SPELLING), **_NORMS, **read_biases(fields))


def _read_olmo3_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_sizes(fields, common, _SPELLING)
    kinds = read_kinds(fields, every(4, values["num_layers"]))
    trained, head_dim = values["max_position"], values["head_dim"]
    nested = fields.object("rope_parameters")
    if nested.has(FULL) or nested.has(SLIDING):
        objects = {kind: nested.object(kind) for kind in (FULL, SLIDING)}
    else:
        objects = {FULL: fields.object("rope_scaling"), SLIDING: Fields({}, "config.json")}
    nested.refuse_unknown((FULL, SLIDING))
    ropes = {
        kind: read_rope_object(rope, fields, trained, head_dim, _OLMO3_ROPE) for kind, rope in objects.items()
    }
    values |= {
        "windows": windows_of(kinds, read_window(fields, 4096)),
        "ropes": tuple(ropes[kind] for kind in kinds),
        "max_position": scaled_max_position(ropes[FULL], trained),
    }
    return DecoderConfig(**values, **_NORMS, **read_biases(fields))


_NAMES = NAMES | HEAD_NORMS | AFTER
OLMO2 = DecoderFamily(read=_read_olmo2_config, names=_NAMES)
OLMO3 = DecoderFamily(read=_read_olmo3_config, names=_NAMES)


def _by_kind(values: dict[str, Any], kinds: tuple[str, ...], window: int | None) -> dict[str, Any]:
    """Returns windows and rotary parameters: both in the layers with a window, and in no others."""
    pairs = zip(values["ropes"], kinds, strict=True)
    return {
        "windows": windows_of(kinds, window),
        "ropes": tuple(rope if kind == SLIDING else None for rope, kind in pairs),
    }


def _read_exaone4_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(fields, common, _SPELLING)
    window, num_layers = read_window(fields, 4096), values["num_layers"]
    if window is None or fields.has("layer_types"):
        default = (FULL,) * num_layers
    else:
        default = every(fields.integer("sliding_window_pattern", 4), num_layers)
    kinds = read_kinds(fields, default)
    values |= _by_kind(values, kinds, window) if window is not None else {}
    return DecoderConfig(**values, norm_place=NormPlace.AFTER, head_norms=HeadNormKind.PER_HEAD)


EXAONE4 = DecoderFamily(
    read=_read_exaone4_config, names=NAMES | HEAD_NORMS | AFTER, harmless=("sliding_window_pattern",)
)


_COHERE2_SPELLING = Spelling(
    max_position=8192,
    norm_eps="layer_norm_eps",
    default_norm_eps=1e-5,
    tied=True,
    rope=RopeDefaults(interleaved=True),
)


def _read_cohere2_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(fields, common, _COHERE2_SPELLING)
    period = fields.integer("sliding_window_pattern", fields.integer("layer_switch", 4))
    kinds = read_kinds(fields, every(period, values["num_layers"]))
    window = read_window(fields, 4096)
    return DecoderConfig(
        **values | _by_kind(values, kinds if window is not None else (FULL,) * len(kinds), window),
        **read_biases(fields),
        norm_kind=NormKind.LAYER_WITHOUT_BIAS,
        norm_place=NormPlace.PARALLEL,
        logit_scale=fields.number("logit_scale", 0.0625),
    )


COHERE2 = DecoderFamily(
    read=_read_cohere2_config,
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
