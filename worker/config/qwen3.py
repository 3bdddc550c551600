"""config.json of Qwen3: a head size of its own, windows as in Qwen2."""

from typing import Any

from worker.config.hf_config import Fields
from worker.config.llama import LlamaConfig, read_common_config
from worker.config.qwen2 import read_windows


def read_qwen3_config(fields: Fields, common: dict[str, Any]) -> LlamaConfig:
    """Reads config.json. Raises StartupError."""
    values = read_common_config(fields, common, max_position=32768, head_dim=128)
    attention_bias = fields.boolean("attention_bias", False)
    return LlamaConfig(
        **values,
        windows=read_windows(fields, values["num_layers"]),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=False,
    )
