"""OPT: layer norms, learned positions, ReLU. Its 350m model norms after each part instead of before,
and its embedding is narrower than its hidden state."""

from collections.abc import Sequence

import torch

from kernels.ops.layers.activation import activation
from worker.attention.plan import LayerCache
from worker.config.opt import POSITION_OFFSET, OPTConfig
from worker.layers.attention import Attention
from worker.layers.base import Layer
from worker.layers.embedding import PositionEmbedding, VocabEmbedding
from worker.layers.linear import RowLinear, column_linear, qkv_linear
from worker.layers.norm import LayerNorm
from worker.model_input import InputBatch
from worker.models.base import Family, LanguageModel
from worker.parallel import ParallelGroup, Placement

NORM_EPS = 1e-5


class OPTAttention(Layer):
    """Projections, attention, projection back."""

    def __init__(self, config: OPTConfig, layer: int, place: Placement) -> None:
        super().__init__()
        num_heads = place.group.split(config.num_heads)
        self.qkv = qkv_linear(
            config.hidden_size, config.num_heads, config.num_heads, config.head_dim, config.bias, place
        )
        self.output = RowLinear(config.hidden_size, config.hidden_size, config.bias, place)
        self.attention = Attention(num_heads, config.head_dim, config.windows[layer])

    def forward(self, x: torch.Tensor, batch: InputBatch, cache: LayerCache) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        return self.output(self.attention(self.qkv(x), batch, cache))


class OPTMLP(Layer):
    """down(f(up(x)))."""

    def __init__(self, config: OPTConfig, place: Placement) -> None:
        super().__init__()
        self.activation = config.activation
        self.up = column_linear(config.hidden_size, (config.ffn_size,), config.bias, place)
        self.down = RowLinear(config.ffn_size, config.hidden_size, config.bias, place)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        return self.down(activation(self.up(x), self.activation))


class OPTBlock(Layer):
    """Attention and feed-forward, each with a residual, normed before or after."""

    def __init__(self, config: OPTConfig, layer: int, place: Placement) -> None:
        super().__init__()
        self.norm_first = config.norm_first
        self.attention_norm = LayerNorm(config.hidden_size, NORM_EPS, place, config.norm_affine)
        self.attention = OPTAttention(config, layer, place)
        self.mlp_norm = LayerNorm(config.hidden_size, NORM_EPS, place, config.norm_affine)
        self.mlp = OPTMLP(config, place)

    def forward(self, x: torch.Tensor, batch: InputBatch, cache: LayerCache) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        if self.norm_first:
            x = x + self.attention(self.attention_norm(x), batch, cache)
            return x + self.mlp(self.mlp_norm(x))
        x = self.attention_norm(x + self.attention(x, batch, cache))
        return self.mlp_norm(x + self.mlp(x))


class OPTModel(LanguageModel):
    """Embeddings, blocks, norm, head, and projections where the embedding is narrower."""

    def __init__(self, config: OPTConfig, place: Placement) -> None:
        super().__init__()
        # The projections between the two widths are small: every rank computes them whole.
        whole = Placement(place.dtype, place.device, ParallelGroup())
        narrow, wide = config.embedding_size, config.hidden_size
        self.embedding = VocabEmbedding(config.vocab_size, narrow, place)
        self.project_in = RowLinear(narrow, wide, False, whole) if narrow != wide else None
        self.positions = PositionEmbedding(config.max_position, wide, place, POSITION_OFFSET)
        self.blocks = torch.nn.ModuleList(OPTBlock(config, i, place) for i in range(config.num_layers))
        self.norm = LayerNorm(wide, NORM_EPS, place, config.norm_affine) if config.final_norm else None
        self.project_out = RowLinear(wide, narrow, False, whole) if narrow != wide else None
        self.head = self.embedding if config.tied else VocabEmbedding(config.vocab_size, narrow, place)

    def forward(self, batch: InputBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        """-> [T, E]."""
        x = self.embedding(batch.token_ids)
        if self.project_in is not None:
            x = self.project_in(x)
        x = x + self.positions(batch.positions)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, batch, cache)
        return x if self.norm is None else self.norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[A, E] -> [A, V] float32."""
        if self.project_out is not None:
            hidden = self.project_out(hidden)
        return self.head.logits(hidden)


NAMES = {
    "embedding": ("model.decoder.embed_tokens",),
    "project_in": ("model.decoder.project_in",),
    "positions": ("model.decoder.embed_positions",),
    "blocks.{i}.attention_norm": ("model.decoder.layers.{i}.self_attn_layer_norm",),
    "blocks.{i}.attention.qkv": (
        "model.decoder.layers.{i}.self_attn.q_proj",
        "model.decoder.layers.{i}.self_attn.k_proj",
        "model.decoder.layers.{i}.self_attn.v_proj",
    ),
    "blocks.{i}.attention.output": ("model.decoder.layers.{i}.self_attn.out_proj",),
    "blocks.{i}.mlp_norm": ("model.decoder.layers.{i}.final_layer_norm",),
    "blocks.{i}.mlp.up": ("model.decoder.layers.{i}.fc1",),
    "blocks.{i}.mlp.down": ("model.decoder.layers.{i}.fc2",),
    "norm": ("model.decoder.final_layer_norm",),
    "project_out": ("model.decoder.project_out",),
    "head": ("lm_head",),
}


OPT = Family(OPTModel, NAMES, unused=r"lm_head\.weight", optional_prefix="model.")
