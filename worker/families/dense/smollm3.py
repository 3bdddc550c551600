"""SmolLM3: Llama in which every fourth layer has no positions."""

from typing import Any

from worker.config.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    DecoderFamily,
    Spelling,
    read_decoder,
    read_kinds,
    windows_of,
)
from worker.config.hf_config import Fields
from worker.config.names import NAMES
from worker.config.rope import RopeDefaults

_SPELLING = Spelling(max_position=32768, tied=True, rope=RopeDefaults(theta=2e6))


def read_smollm3_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    values = read_decoder(fields, common, _SPELLING)
    num_layers = values["num_layers"]
    interval = fields.integer("no_rope_layer_interval", 4)
    rotates = tuple(int((layer + 1) % interval != 0) for layer in range(num_layers))
    if fields.has("no_rope_layers"):
        rotates = fields.integers("no_rope_layers", least=0)
    if len(rotates) < num_layers or not set(rotates) <= {0, 1}:
        raise fields.wrong("no_rope_layers", "must have a 0 or a 1 for each hidden layer")
    used = fields.boolean("use_sliding_window", False)
    window = fields.integer("sliding_window") if used and fields.has("sliding_window") else None
    kinds = read_kinds(fields, tuple(FULL if rotates[layer] else SLIDING for layer in range(num_layers)))
    bias = fields.boolean("attention_bias", False)
    values["ropes"] = tuple(rope if on else None for rope, on in zip(values["ropes"], rotates, strict=False))
    return DecoderConfig(
        **values | {"windows": windows_of(kinds, window)},
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=fields.boolean("mlp_bias", False),
    )


SMOLLM3 = DecoderFamily(
    read=read_smollm3_config, names=NAMES, harmless=("sliding_window", "max_window_layers")
)
