"""Decoders with layer norms and learned positions.

GPT-2    GELU; checkpoints store weights as [in, out], with query, key and value fused
OPT      ReLU; the 350m model norms after each part instead of before, and has an embedding that is narrower
         than the hidden state
"""

import torch

from kernels.api import InputBatch, adapters
from worker.config.gpt2 import GPT2Config
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


def attention(
    config: GPT2Config | OPTConfig,
    layer: int,
    place: Placement,
    *,
    bias: bool,
    transposed: bool = False,
    scale: float | None = None,
) -> SelfAttention:
    """Returns the attention part of a block. scale: default D ** -0.5."""
    hidden, heads, head_dim = config.hidden_size, config.num_heads, config.head_dim
    local_heads = place.group.split(heads)
    return SelfAttention(
        qkv_linear(hidden, heads, heads, head_dim, bias, place, transposed=transposed),
        Attention(local_heads, local_heads, head_dim, config.windows[layer], scale),
        RowLinear(hidden, hidden, bias, place, transposed=transposed),
    )


def mlp(
    config: GPT2Config | OPTConfig, inner: int, place: Placement, *, bias: bool, transposed: bool = False
) -> MLP:
    """Returns the feed-forward part of a block. inner: I."""
    up = column_linear(config.hidden_size, (inner,), bias, place, transposed=transposed)
    down = RowLinear(inner, config.hidden_size, bias, place, transposed=transposed)
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
                Block(
                    norm(),
                    attention(config, layer, place, bias=True, transposed=True, scale=config.scales[layer]),
                    norm(),
                    mlp(config, config.inner_size, place, bias=True, transposed=True),
                )
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


_GPT2_NAMES = {
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

_GPT2_UNUSED = r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)|lm_head\.weight"
"""Causal masks that some checkpoints store, and the head's weight that some tied checkpoints hold all the
same."""


GPT2 = Family(GPT2Model, _GPT2_NAMES, _GPT2_UNUSED, optional_prefix="transformer.")


_OPT_NORM_EPS = 1e-5


class OPTModel(Decoder):
    """A decoder with positions, and with projections where the embedding is narrower."""

    def __init__(self, config: OPTConfig, place: Placement) -> None:
        narrow, wide = config.embedding_size, config.hidden_size

        def norm() -> LayerNorm:
            return LayerNorm(wide, _OPT_NORM_EPS, place, config.norm_affine)

        def embedding() -> VocabEmbedding:
            return VocabEmbedding(config.vocab_size, narrow, place)

        block = Block if config.norm_first else PostNormBlock
        super().__init__(
            embedding(),
            [
                block(
                    norm(),
                    attention(config, layer, place, bias=config.bias),
                    norm(),
                    mlp(config, config.ffn_size, place, bias=config.bias),
                )
                for layer in range(config.num_layers)
            ],
            norm() if config.final_norm else None,
            None if config.tied else embedding(),
        )
        # The projections between the two widths are small: every rank computes them whole.
        whole = Placement(place.dtype, place.device, ParallelGroup())
        self.project_in = RowLinear(narrow, wide, False, whole) if narrow != wide else None
        self.project_out = RowLinear(wide, narrow, False, whole) if narrow != wide else None
        if self.project_out is not None:
            self.project_out.takes_adapters = False  # it computes logits, which do not see the step
        self.positions = PositionEmbedding(config.max_position, wide, place, POSITION_OFFSET)

    def embed(self, batch: InputBatch) -> torch.Tensor:
        return self.ops.per_step(self._embed, batch, self.positions.width)

    def _embed(self, batch: InputBatch) -> torch.Tensor:
        x = self.embedding(batch)
        if self.project_in is not None:
            x = self.project_in(x, batch)
        return x + self.positions(batch)

    def logits(self, hidden: torch.Tensor, adapters: adapters.StepAdapters | None = None) -> torch.Tensor:
        if self.project_out is not None:
            hidden = self.project_out.product(hidden)
        return super().logits(hidden, adapters)


_OPT_NAMES = {
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


OPT = Family(OPTModel, _OPT_NAMES, unused=r"lm_head\.weight", optional_prefix="model.")
