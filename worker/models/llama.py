"""Llama: RMS norms, rotary positions, grouped-query attention, gated feed-forward.

Mistral, Qwen2 and Qwen3 are made of the same parts and differ in what their config.json says.
"""

from worker.config.llama import LlamaConfig
from worker.layers.attention import Attention
from worker.layers.block import Block
from worker.layers.embedding import VocabEmbedding
from worker.layers.linear import RowLinear, column_linear, local_kv_heads, qkv_linear
from worker.layers.mlp import GatedMLP
from worker.layers.norm import RMSNorm
from worker.layers.rotary import Rotary
from worker.layers.self_attention import SelfAttention
from worker.models.base import Family
from worker.models.decoder import Decoder
from worker.parallel import Placement


def attention(config: LlamaConfig, layer: int, place: Placement, head_norms: bool = False) -> SelfAttention:
    """Returns the attention part of a block. head_norms: with a norm over each query and key head before the
    rotation; all heads of one kind share a weight."""
    hidden, heads, kv_heads, head_dim = (
        config.hidden_size,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
    )
    local_heads = place.group.split(heads), local_kv_heads(kv_heads, place.group.size)
    norms = (RMSNorm(head_dim, config.norm_eps, place), RMSNorm(head_dim, config.norm_eps, place))
    return SelfAttention(
        qkv_linear(hidden, heads, kv_heads, head_dim, config.qkv_bias, place),
        Attention(*local_heads, head_dim, config.windows[layer]),
        RowLinear(heads * head_dim, hidden, config.output_bias, place),
        norms if head_norms else None,
    )


def mlp(config: LlamaConfig, place: Placement) -> GatedMLP:
    """Returns the feed-forward part of a block."""
    hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
    gate_up = column_linear(hidden, (inner, inner), bias, place)
    return GatedMLP(gate_up, RowLinear(inner, hidden, bias, place), config.activation)


def build_llama(config: LlamaConfig, place: Placement, head_norms: bool = False) -> Decoder:
    """Returns the model without its weights. head_norms: see attention()."""

    def norm() -> RMSNorm:
        return RMSNorm(config.hidden_size, config.norm_eps, place)

    def embedding() -> VocabEmbedding:
        return VocabEmbedding(config.vocab_size, config.hidden_size, place)

    return Decoder(
        embedding(),
        [
            Block(norm(), attention(config, layer, place, head_norms), norm(), mlp(config, place))
            for layer in range(config.num_layers)
        ],
        norm(),
        None if config.tied else embedding(),
        Rotary(config.rope, config.head_dim, place.device),
    )


NAMES = {
    "embedding": ("model.embed_tokens",),
    "blocks.{layer}.attention_norm": ("model.layers.{layer}.input_layernorm",),
    "blocks.{layer}.attention.qkv": (
        "model.layers.{layer}.self_attn.q_proj",
        "model.layers.{layer}.self_attn.k_proj",
        "model.layers.{layer}.self_attn.v_proj",
    ),
    "blocks.{layer}.attention.output": ("model.layers.{layer}.self_attn.o_proj",),
    "blocks.{layer}.mlp_norm": ("model.layers.{layer}.post_attention_layernorm",),
    "blocks.{layer}.mlp.gate_up": (
        "model.layers.{layer}.mlp.gate_proj",
        "model.layers.{layer}.mlp.up_proj",
    ),
    "blocks.{layer}.mlp.down": ("model.layers.{layer}.mlp.down_proj",),
    "norm": ("model.norm",),
    "head": ("lm_head",),
}

UNUSED = r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq|model\.rotary_emb\.inv_freq|lm_head\.weight"
"""Buffers of older checkpoints, and the head's weight that some tied checkpoints hold all the same."""


LLAMA = Family(build_llama, NAMES, UNUSED)
