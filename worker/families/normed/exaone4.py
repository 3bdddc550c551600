"""EXAONE 4: norms after both parts, norms of heads; where some layers have a window, the others have no
positions."""

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
    read_window,
    windows_of,
)
from worker.config.hf_config import Fields
from worker.config.names import AFTER, HEAD_NORMS, NAMES

_SPELLING = Spelling(max_position=2048, default_norm_eps=1e-5)


def read_exaone4_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    values = read_decoder(fields, common, _SPELLING)
    window, num_layers = read_window(fields, 4096), values["num_layers"]
    if window is None or fields.has("layer_types"):
        default = (FULL,) * num_layers
    else:
        default = every(fields.integer("sliding_window_pattern", 4), num_layers)
    kinds = read_kinds(fields, default)
    pairs = zip(values["ropes"], kinds, strict=True)
    values |= {
        "windows": windows_of(kinds, window),
        "ropes": tuple(rope if window is None or kind == SLIDING else None for rope, kind in pairs),
    }
    return DecoderConfig(**values, norm_place=NormPlace.AFTER, head_norms=HeadNormKind.PER_HEAD)


EXAONE4 = DecoderFamily(
    read=read_exaone4_config, names=NAMES | HEAD_NORMS | AFTER, harmless=("sliding_window_pattern",)
)
