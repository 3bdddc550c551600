"""GPT-2: layer norms, learned positions, GELU. Its checkpoint stores weights as [in, out], with query,
key and value fused."""

from collections.abc import Sequence

import torch

from kernels.ops.layers.activation import activation
from worker.attention.plan import LayerCache
from worker.config.gpt2 import GPT2Config
from worker.layers.attention import Attention
from worker.layers.base import Layer
from worker.layers.embedding import PositionEmbedding, VocabEmbedding
from worker.layers.linear import RowLinear, column_linear, qkv_linear
from worker.layers.norm import LayerNorm
from worker.model_input import InputBatch
from worker.models.base import Family, LanguageModel
from worker.parallel import Placement


class GPT2Attention(Layer):
    """Projections, attention, projection back."""

    def __init__(self, config: GPT2Config, layer: int, place: Placement) -> None:
        super().__init__()
        num_heads = place.group.split(config.num_heads)
        self.qkv = qkv_linear(
            config.hidden_size,
            config.num_heads,
            config.num_heads,
            config.head_dim,
            True,
            place,
            transposed=True,
        )
        self.output = RowLinear(config.hidden_size, config.hidden_size, True, place, transposed=True)
        self.attention = Attention(num_heads, config.head_dim, config.windows[layer], config.scales[layer])

    def forward(self, x: torch.Tensor, batch: InputBatch, cache: LayerCache) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        return self.output(self.attention(self.qkv(x), batch, cache))


class GPT2MLP(Layer):
    """down(f(up(x)))."""

    def __init__(self, config: GPT2Config, place: Placement) -> None:
        super().__init__()
        self.activation = config.activation
        self.up = column_linear(config.hidden_size, (config.inner_size,), True, place, transposed=True)
        self.down = RowLinear(config.inner_size, config.hidden_size, True, place, transposed=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        return self.down(activation(self.up(x), self.activation))


class GPT2Block(Layer):
    """Attention and feed-forward, each behind a norm and with a residual."""

    def __init__(self, config: GPT2Config, layer: int, place: Placement) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(config.hidden_size, config.norm_eps, place)
        self.attention = GPT2Attention(config, layer, place)
        self.mlp_norm = LayerNorm(config.hidden_size, config.norm_eps, place)
        self.mlp = GPT2MLP(config, place)

    def forward(self, x: torch.Tensor, batch: InputBatch, cache: LayerCache) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        x = x + self.attention(self.attention_norm(x), batch, cache)
        return x + self.mlp(self.mlp_norm(x))


class GPT2Model(LanguageModel):
    """Embeddings, blocks, norm, head."""

    def __init__(self, config: GPT2Config, place: Placement) -> None:
        super().__init__()
        self.embedding = VocabEmbedding(config.vocab_size, config.hidden_size, place)
        self.positions = PositionEmbedding(config.max_position, config.hidden_size, place)
        self.blocks = torch.nn.ModuleList(GPT2Block(config, i, place) for i in range(config.num_layers))
        self.norm = LayerNorm(config.hidden_size, config.norm_eps, place)
        self.head = (
            self.embedding if config.tied else VocabEmbedding(config.vocab_size, config.hidden_size, place)
        )

    def forward(self, batch: InputBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        """-> [T, E]."""
        x = self.embedding(batch.token_ids) + self.positions(batch.positions)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, batch, cache)
        return self.norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[A, E] -> [A, V] float32."""
        return self.head.logits(hidden)


NAMES = {
    "embedding": ("transformer.wte",),
    "positions": ("transformer.wpe",),
    "blocks.{i}.attention_norm": ("transformer.h.{i}.ln_1",),
    "blocks.{i}.attention.qkv": ("transformer.h.{i}.attn.c_attn",),
    "blocks.{i}.attention.output": ("transformer.h.{i}.attn.c_proj",),
    "blocks.{i}.mlp_norm": ("transformer.h.{i}.ln_2",),
    "blocks.{i}.mlp.up": ("transformer.h.{i}.mlp.c_fc",),
    "blocks.{i}.mlp.down": ("transformer.h.{i}.mlp.c_proj",),
    "norm": ("transformer.ln_f",),
    "head": ("lm_head",),
}

UNUSED = r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)|lm_head\.weight"
"""Causal masks that were written out, and a head that is tied but written out all the same."""


GPT2 = Family(GPT2Model, NAMES, UNUSED, optional_prefix="transformer.")
