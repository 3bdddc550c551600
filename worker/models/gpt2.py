"""GPT-2: layer norms, learned positions, GELU. Its checkpoint stores weights as [in, out], with query,
key and value fused."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.activation import activation
from worker.checkpoint import Fields, ModelConfig, read_activation
from worker.input_batch import InputBatch
from worker.layers.attention import Attention, LayerCache
from worker.layers.embedding import PositionEmbedding, VocabEmbedding
from worker.layers.layer import Layer
from worker.layers.linear import RowLinear, column_linear, qkv_linear
from worker.layers.norm import LayerNorm
from worker.models.base import Family, LanguageModel
from worker.parallel import Placement


@dataclass(frozen=True, kw_only=True)
class GPT2Config(ModelConfig):
    """What GPT-2 needs besides."""

    inner_size: int  # I
    norm_eps: float
    activation: str
    scales: tuple[float, ...]  # by layer: factor of the attention scores


class GPT2Attention(Layer):
    """Projections, attention, projection back."""

    def __init__(self, config: GPT2Config, layer: int, place: Placement) -> None:
        super().__init__()
        self.head_dim = config.head_dim
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
        self.attention = Attention(config.head_dim, config.windows[layer], config.scales[layer])

    def forward(self, x: torch.Tensor, batch: InputBatch, cache: LayerCache) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        # [T, 3 H D] -> three of [T, H, D]
        query, key, value = self.qkv(x).view(x.shape[0], -1, self.head_dim).chunk(3, dim=1)
        return self.output(self.attention(query, key, value, batch, cache))


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


def read_gpt2_config(fields: Fields, common: dict[str, Any]) -> GPT2Config:
    """From config.json."""
    hidden_size, num_heads = fields.integer("n_embd"), fields.integer("n_head")
    num_layers = fields.integer("n_layer")
    if hidden_size % num_heads:
        raise fields.wrong("n_head", f"must divide n_embd ({hidden_size})")
    if fields.boolean("add_cross_attention", False):
        raise fields.wrong("add_cross_attention", "cross-attention is not supported")
    head_dim = hidden_size // num_heads
    scale = head_dim**-0.5 if fields.boolean("scale_attn_weights", True) else 1.0
    by_layer = fields.boolean("scale_attn_by_inverse_layer_idx", False)
    return GPT2Config(
        **common,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        num_layers=num_layers,
        windows=(None,) * num_layers,
        max_position=fields.integer("n_positions", 1024),
        tied=fields.boolean("tie_word_embeddings", True),
        inner_size=fields.integer("n_inner", 4 * hidden_size),
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        activation=read_activation(fields, "activation_function", "gelu_new"),
        scales=tuple(scale / (layer + 1) if by_layer else scale for layer in range(num_layers)),
    )


GPT2 = Family(read_gpt2_config, GPT2Model, NAMES, UNUSED, optional_prefix="transformer.")
