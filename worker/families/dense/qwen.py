"""Qwen2 and Qwen3: Llama with biases on query, key and value, then with norms of heads in their place; a
sliding window in the upper layers if asked."""

from typing import Any

from worker.config.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    DecoderFamily,
    HeadNormKind,
    Spelling,
    read_decoder,
    read_kinds,
    read_used_window,
    windows_of,
)
from worker.config.hf_config import Fields
from worker.config.names import HEAD_NORMS, NAMES


def read_qwen_windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Returns the window of each layer: as `layer_types` says, or from layer `max_window_layers` on."""
    first = fields.integer("max_window_layers", 28, least=0)
    kinds = read_kinds(fields, tuple(SLIDING if layer >= first else FULL for layer in range(num_layers)))
    return windows_of(kinds, read_used_window(fields))


def read_qwen2_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    values = read_decoder(fields, common, Spelling(max_position=32768))
    values["windows"] = read_qwen_windows(fields, values["num_layers"])
    return DecoderConfig(**values, qkv_bias=True)


def read_qwen3_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    values = read_decoder(fields, common, Spelling(max_position=32768, head_dim=128))
    values["windows"] = read_qwen_windows(fields, values["num_layers"])
    bias = fields.boolean("attention_bias", False)
    return DecoderConfig(**values, qkv_bias=bias, output_bias=bias, head_norms=HeadNormKind.PER_HEAD)


QWEN2 = DecoderFamily(
    read=read_qwen2_config,
    names=NAMES,
    harmless=("attention_bias",),
    only={"use_mrope": False, "mlp_bias": False},
)
QWEN3 = DecoderFamily(read=read_qwen3_config, names=NAMES | HEAD_NORMS, only={"mlp_bias": False})
