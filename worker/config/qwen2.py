"""config.json of Qwen2: biases on query, key and value, and a sliding window in the upper layers if asked."""

from typing import Any

from worker.config.hf_config import Fields
from worker.config.llama import LlamaConfig, read_common_config


def read_windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Returns the window of each layer: as `layer_types` says, or from layer `max_window_layers` on. For
    Qwen3 too."""
    if not fields.boolean("use_sliding_window", False) or (
        "sliding_window" in fields and not fields.has("sliding_window")
    ):
        return (None,) * num_layers
    window = fields.integer("sliding_window", 4096)
    if not fields.has("layer_types"):
        first = fields.integer("max_window_layers", 28, least=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    kinds = fields.texts("layer_types")
    if len(kinds) != num_layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
        raise fields.wrong(
            "layer_types", "must name sliding_attention or full_attention once per hidden layer"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def read_qwen2_config(fields: Fields, common: dict[str, Any]) -> LlamaConfig:
    """Reads config.json. Raises StartupError."""
    values = read_common_config(fields, common, max_position=32768)
    return LlamaConfig(
        **values,
        windows=read_windows(fields, values["num_layers"]),
        qkv_bias=True,
        output_bias=False,
        mlp_bias=False,
    )
