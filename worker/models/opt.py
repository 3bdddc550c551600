"""OPT: layer norms, learned positions, ReLU. Its 350m model norms after each part instead of before,
and its embedding is narrower than its hidden state."""

import torch

from kernels.api import InputBatch
from worker.config.opt import POSITION_OFFSET, OPTConfig
from worker.layers.attention.self_attention import Attention, SelfAttention
from worker.layers.block import Block, PostNormBlock
from worker.layers.embedding import PositionEmbedding, VocabEmbedding
from worker.layers.linear import RowLinear, column_linear, qkv_linear
from worker.layers.mlp import MLP
from worker.layers.norm import LayerNorm
from worker.models.base import Family
from worker.models.decoder import Decoder
from worker.parallel import ParallelGroup, Placement

NORM_EPS = 1e-5


def attention(config: OPTConfig, layer: int, place: Placement) -> SelfAttention:
    """Returns the attention part of a block."""
    hidden, heads, head_dim = config.hidden_size, config.num_heads, config.head_dim
    local_heads = place.group.split(heads)
    return SelfAttention(
        qkv_linear(hidden, heads, heads, head_dim, config.bias, place),
        Attention(local_heads, local_heads, head_dim, config.windows[layer]),
        RowLinear(hidden, hidden, config.bias, place),
    )


def mlp(config: OPTConfig, place: Placement) -> MLP:
    """Returns the feed-forward part of a block."""
    up = column_linear(config.hidden_size, (config.ffn_size,), config.bias, place)
    return MLP(up, RowLinear(config.ffn_size, config.hidden_size, config.bias, place), config.activation)


class OPTModel(Decoder):
    """A decoder with positions, and with projections where the embedding is narrower."""

    def __init__(self, config: OPTConfig, place: Placement) -> None:
        narrow, wide = config.embedding_size, config.hidden_size

        def norm() -> LayerNorm:
            return LayerNorm(wide, NORM_EPS, place, config.norm_affine)

        def embedding() -> VocabEmbedding:
            return VocabEmbedding(config.vocab_size, narrow, place)

        block = Block if config.norm_first else PostNormBlock
        super().__init__(
            embedding(),
            [
                block(norm(), attention(config, layer, place), norm(), mlp(config, place))
                for layer in range(config.num_layers)
            ],
            norm() if config.final_norm else None,
            None if config.tied else embedding(),
        )
        # The projections between the two widths are small: every rank computes them whole.
        whole = Placement(place.dtype, place.device, ParallelGroup())
        self.project_in = RowLinear(narrow, wide, False, whole) if narrow != wide else None
        self.project_out = RowLinear(wide, narrow, False, whole) if narrow != wide else None
        self.positions = PositionEmbedding(config.max_position, wide, place, POSITION_OFFSET)

    def embed(self, batch: InputBatch) -> torch.Tensor:
        return self.ops.per_step(self._embed, batch, self.positions.width)

    def _embed(self, batch: InputBatch) -> torch.Tensor:
        x = self.embedding(batch)
        if self.project_in is not None:
            x = self.project_in(x, batch)
        return x + self.positions(batch)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[A, E] -> [A, V] float32."""
        if self.project_out is not None:
            hidden = self.project_out.product(hidden)
        return super().logits(hidden)


NAMES = {
    "embedding": ("model.decoder.embed_tokens",),
    "project_in": ("model.decoder.project_in",),
    "positions": ("model.decoder.embed_positions",),
    "blocks.{layer}.attention_norm": ("model.decoder.layers.{layer}.self_attn_layer_norm",),
    "blocks.{layer}.attention.qkv": (
        "model.decoder.layers.{layer}.self_attn.q_proj",
        "model.decoder.layers.{layer}.self_attn.k_proj",
        "model.decoder.layers.{layer}.self_attn.v_proj",
    ),
    "blocks.{layer}.attention.output": ("model.decoder.layers.{layer}.self_attn.out_proj",),
    "blocks.{layer}.mlp_norm": ("model.decoder.layers.{layer}.final_layer_norm",),
    "blocks.{layer}.mlp.up": ("model.decoder.layers.{layer}.fc1",),
    "blocks.{layer}.mlp.down": ("model.decoder.layers.{layer}.fc2",),
    "norm": ("model.decoder.final_layer_norm",),
    "project_out": ("model.decoder.project_out",),
    "head": ("lm_head",),
}


OPT = Family(OPTModel, NAMES, unused=r"lm_head\.weight", optional_prefix="model.")
