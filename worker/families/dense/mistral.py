"""Mistral and Ministral: Llama without biases, with a sliding window in all layers or in those that the file
names."""

from typing import Any

from worker.config.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    DecoderFamily,
    Spelling,
    read_decoder,
    read_kinds,
    read_window,
    windows_of,
)
from worker.config.hf_config import Fields
from worker.config.names import NAMES

_SPELLING = Spelling(max_position=131072)


def read_mistral_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. A window that is left out is 4096; null means none. Raises StartupError."""
    values = read_decoder(fields, common, _SPELLING)
    values["windows"] = (read_window(fields, 4096),) * values["num_layers"]
    return DecoderConfig(**values)


def read_ministral_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """As read_mistral_config(), where `layer_types` may leave layers without the window."""
    values = read_decoder(fields, common, _SPELLING)
    window = read_window(fields, 4096)
    kinds = read_kinds(fields, (FULL if window is None else SLIDING,) * values["num_layers"])
    return DecoderConfig(**values | {"windows": windows_of(kinds, window)})


_NO_BIASES = {"attention_bias": False, "mlp_bias": False}
MISTRAL = DecoderFamily(read=read_mistral_config, names=NAMES, only=_NO_BIASES)
MINISTRAL = DecoderFamily(read=read_ministral_config, names=NAMES, only=_NO_BIASES)
