"""Qwen3: Llama with a norm over each query and key head before the rotation."""

from worker.config.llama import LlamaConfig
from worker.layers.norm import RMSNorm
from worker.models.base import Family
from worker.models.llama import NAMES, UNUSED, LlamaAttention, LlamaModel
from worker.parallel import Placement


class Qwen3Attention(LlamaAttention):
    """With head norms; all heads of one kind share a weight."""

    def __init__(self, config: LlamaConfig, layer: int, place: Placement) -> None:
        super().__init__(config, layer, place)
        self.query_norm = RMSNorm(config.head_dim, config.norm_eps, place)
        self.key_norm = RMSNorm(config.head_dim, config.norm_eps, place)
        self.norms = self.query_norm, self.key_norm


def build_qwen3(config: LlamaConfig, place: Placement) -> LlamaModel:
    """Llama with the attention above."""
    return LlamaModel(config, place, Qwen3Attention)


QWEN3_NAMES = NAMES | {
    "blocks.{i}.attention.query_norm": ("model.layers.{i}.self_attn.q_norm",),
    "blocks.{i}.attention.key_norm": ("model.layers.{i}.self_attn.k_norm",),
}

QWEN3 = Family(build_qwen3, QWEN3_NAMES, UNUSED)
