"""Qwen3: Llama with a norm over each query and key head before the rotation."""

from typing import Any

import torch

from worker.checkpoint import Fields
from worker.layers.norm import RMSNorm
from worker.models.base import Family
from worker.models.llama import NAMES, UNUSED, LlamaAttention, LlamaConfig, LlamaModel, read_common_config
from worker.models.qwen2 import read_windows
from worker.parallel import Placement


class Qwen3Attention(LlamaAttention):
    """With head norms; all heads of one kind share a weight."""

    def __init__(self, config: LlamaConfig, layer: int, place: Placement) -> None:
        super().__init__(config, layer, place)
        self.query_norm = RMSNorm(config.head_dim, config.norm_eps, place)
        self.key_norm = RMSNorm(config.head_dim, config.norm_eps, place)

    def norm_heads(self, query_key: torch.Tensor) -> torch.Tensor:
        """[T, H + K, D] -> the same."""
        query, key = query_key.split_with_sizes((self.num_heads, self.num_kv_heads), dim=1)
        return torch.cat((self.query_norm(query), self.key_norm(key)), dim=1)


def build_qwen3(config: LlamaConfig, place: Placement) -> LlamaModel:
    """Llama with the attention above."""
    return LlamaModel(config, place, Qwen3Attention)


def read_qwen3_config(fields: Fields, common: dict[str, Any]) -> LlamaConfig:
    """From config.json."""
    values = read_common_config(fields, common, max_position=32768, head_dim=128)
    attention_bias = fields.boolean("attention_bias", False)
    return LlamaConfig(
        **values,
        windows=read_windows(fields, values["num_layers"]),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=False,
    )


QWEN3_NAMES = NAMES | {
    "blocks.{i}.attention.query_norm": ("model.layers.{i}.self_attn.q_norm",),
    "blocks.{i}.attention.key_norm": ("model.layers.{i}.self_attn.k_norm",),
}

QWEN3 = Family(read_qwen3_config, build_qwen3, QWEN3_NAMES, UNUSED)
