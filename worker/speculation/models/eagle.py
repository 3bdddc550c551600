"""An EAGLE-3 head: one decoder layer that reads tokens and features of a target, and predicts what follows.

features   fc(hidden states behind some of the target's layers, side by side)        [T, E]
input      norm(embedding of the next token) and norm(features), side by side        [T, 2 E]
layer      attention over the input, then a feed-forward part; the stream begins with the features
states     what the layer leaves: the features of the next token, where the target has none yet
logits     of `draft_vocab_size` tokens, whose numbers in the vocabulary `token_map` has
"""

from collections.abc import Sequence

import torch

from kernels.api import InputBatch, LayerCache
from worker.layers.attention.rotary import Rotary, rotary_order
from worker.layers.attention.self_attention import Attention, SelfAttention
from worker.layers.embedding import VocabEmbedding
from worker.layers.linear import RowLinear, column_linear, qkv_linear
from worker.layers.mlp import GatedMLP
from worker.layers.norm import RMSNorm
from worker.parallel import Placement
from worker.speculation.models.features import Head
from worker.speculation.models.head_config import HeadConfig

NAMES: dict[str, tuple[str, ...]] = {
    "own_embedding": ("embed_tokens",),
    "fc": ("fc",),
    "token_norm": ("midlayer.input_layernorm",),
    "feature_norm": ("midlayer.hidden_norm",),
    "attention.qkv": tuple(f"midlayer.self_attn.{name}_proj" for name in "qkv"),
    "attention.output": ("midlayer.self_attn.o_proj",),
    "mlp_norm": ("midlayer.post_attention_layernorm",),
    "mlp.gate_up": ("midlayer.mlp.gate_proj", "midlayer.mlp.up_proj"),
    "mlp.down": ("midlayer.mlp.down_proj",),
    "norm": ("norm",),
    "head": ("lm_head",),
}
"""Path of a layer -> modules of the checkpoint; see worker.weights.loader."""
TOKEN_MAP = "d2t"
"""The tensor [draft vocabulary] int64 of what is added to a token's number there."""
UNUSED = r"t2d|d2t|midlayer\.self_attn\.rotary_emb\.inv_freq|embed_tokens\.weight"
"""Pattern of tensors that a checkpoint may hold besides."""


class EagleHead(Head):
    """A head without its weights."""

    def __init__(
        self, config: HeadConfig, place: Placement, target: VocabEmbedding, has_embedding: bool
    ) -> None:
        """target: the embedding of the target, used where the head has none of its own."""
        super().__init__()
        layer = config.layer
        width, rope = layer.hidden_size, layer.ropes[0]
        assert rope is not None

        def norm() -> RMSNorm:
            return RMSNorm(width, layer.norm_eps, place)

        # In the order in which the weights are allocated; see worker.models.decoder.
        self.own_embedding = VocabEmbedding(layer.vocab_size, width, place) if has_embedding else None
        self.rotary = Rotary(rope, layer.head_dim, place.device)
        self.fc = column_linear(len(config.after) * width, (width,), False, place)
        self.token_norm, self.feature_norm = norm(), norm()
        self.attention = _attention(config, place)
        self.mlp_norm = norm()
        inner = layer.intermediate_size
        gate_up = column_linear(width, (inner, inner), False, place)
        self.mlp = GatedMLP(gate_up, RowLinear(inner, width, False, place), layer.activation)
        self.norm = norm()
        self.head = VocabEmbedding(config.draft_vocab_size, width, place)
        self._embed = (self.own_embedding or target,)  # in a tuple: the target's is no part of the head
        self._norms_residual, self._vocab_size = config.norms_residual, layer.vocab_size
        self.token_map: torch.Tensor | None = None  # [draft vocabulary] int64; None: the same numbers
        self.features = self.states = torch.empty(0)

    @property
    def looked_up(self) -> VocabEmbedding | None:
        return self.own_embedding

    def fuse(self, captured: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.fc.product(torch.cat(tuple(captured), dim=-1))

    def forward(self, batch: InputBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        """The batch has for each position the token behind it."""
        (embed,), features = self._embed, self.features
        normed = self.feature_norm(features)
        x = torch.cat((self.token_norm(embed(batch)), normed), dim=-1)
        x = self.attention(x, batch, caches[0], self.rotary.rotation(batch))
        x, residual = self.mlp_norm.add(x, normed if self._norms_residual else features)
        hidden, self.states = self.norm.add(self.mlp(x, batch), residual)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[A, E] -> [A, V] float32: of the target's vocabulary, -inf for tokens that the head lacks."""
        logits = self.head.logits(hidden)
        if self.token_map is None:
            return logits
        every = torch.full((len(logits), self._vocab_size), -torch.inf)
        return every.index_copy_(1, self.token_map, logits)


def _attention(config: HeadConfig, place: Placement) -> SelfAttention:
    layer = config.layer
    heads, kv_heads, head_dim = layer.num_heads, layer.num_kv_heads, layer.head_dim
    order = rotary_order(layer.ropes[0], head_dim)
    sizes = 2 * layer.hidden_size, heads, kv_heads, head_dim
    return SelfAttention(
        qkv_linear(*sizes, layer.qkv_bias, place, head_order=order),
        Attention(heads, kv_heads, head_dim),
        RowLinear(heads * head_dim, layer.hidden_size, layer.output_bias, place),
    )
