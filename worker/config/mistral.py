"""config.json of Mistral: no biases, and a sliding window in every layer where the file gives one."""

from typing import Any

from worker.config.hf_config import Fields
from worker.config.llama import LlamaConfig, read_common_config


def read_mistral_config(fields: Fields, common: dict[str, Any]) -> LlamaConfig:
    """Reads config.json. A window that is left out is 4096; null means none. Raises StartupError."""
    values = read_common_config(fields, common, max_position=131072)
    windowed = fields.has("sliding_window") or "sliding_window" not in fields
    window = fields.integer("sliding_window", 4096) if windowed else None
    return LlamaConfig(
        **values,
        windows=(window,) * values["num_layers"],
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
    )
