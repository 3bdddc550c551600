"""GPT-2: layer norms, learned positions, GELU. Its checkpoint stores weights as [in, out], with query,
key and value fused."""

import torch

from kernels.api import InputBatch
from worker.config.gpt2 import GPT2Config
from worker.layers.attention.self_attention import Attention, SelfAttention
from worker.layers.block import Block
from worker.layers.embedding import PositionEmbedding, VocabEmbedding
from worker.layers.linear import RowLinear, column_linear, qkv_linear
from worker.layers.mlp import MLP
from worker.layers.norm import LayerNorm
from worker.models.base import Family
from worker.models.decoder import Decoder
from worker.parallel import Placement


def attention(config: GPT2Config, layer: int, place: Placement) -> SelfAttention:
    """Returns the attention part of a block."""
    hidden, heads, head_dim = config.hidden_size, config.num_heads, config.head_dim
    local_heads = place.group.split(heads)
    return SelfAttention(
        qkv_linear(hidden, heads, heads, head_dim, True, place, transposed=True),
        Attention(local_heads, local_heads, head_dim, config.windows[layer], config.scales[layer]),
        RowLinear(hidden, hidden, True, place, transposed=True),
    )


def mlp(config: GPT2Config, place: Placement) -> MLP:
    """Returns the feed-forward part of a block."""
    up = column_linear(config.hidden_size, (config.inner_size,), True, place, transposed=True)
    down = RowLinear(config.inner_size, config.hidden_size, True, place, transposed=True)
    return MLP(up, down, config.activation)


class GPT2Model(Decoder):
    """A decoder whose embedding includes positions."""

    def __init__(self, config: GPT2Config, place: Placement) -> None:
        def norm() -> LayerNorm:
            return LayerNorm(config.hidden_size, config.norm_eps, place)

        def embedding() -> VocabEmbedding:
            return VocabEmbedding(config.vocab_size, config.hidden_size, place)

        super().__init__(
            embedding(),
            [
                Block(norm(), attention(config, layer, place), norm(), mlp(config, place))
                for layer in range(config.num_layers)
            ],
            norm(),
            None if config.tied else embedding(),
        )
        self.positions = PositionEmbedding(config.max_position, config.hidden_size, place)

    def embed(self, batch: InputBatch) -> torch.Tensor:
        return self.ops.per_step(self._embed, batch, self.embedding.width)

    def _embed(self, batch: InputBatch) -> torch.Tensor:
        return self.embedding(batch) + self.positions(batch)


NAMES = {
    "embedding": ("transformer.wte",),
    "positions": ("transformer.wpe",),
    "blocks.{layer}.attention_norm": ("transformer.h.{layer}.ln_1",),
    "blocks.{layer}.attention.qkv": ("transformer.h.{layer}.attn.c_attn",),
    "blocks.{layer}.attention.output": ("transformer.h.{layer}.attn.c_proj",),
    "blocks.{layer}.mlp_norm": ("transformer.h.{layer}.ln_2",),
    "blocks.{layer}.mlp.up": ("transformer.h.{layer}.mlp.c_fc",),
    "blocks.{layer}.mlp.down": ("transformer.h.{layer}.mlp.c_proj",),
    "norm": ("transformer.ln_f",),
    "head": ("lm_head",),
}

UNUSED = r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)|lm_head\.weight"
"""Causal masks that some checkpoints store, and the head's weight that some tied checkpoints hold all the
same."""


GPT2 = Family(GPT2Model, NAMES, UNUSED, optional_prefix="transformer.")
