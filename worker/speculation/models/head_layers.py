"""Heads that draft.

An EAGLE-3 head is one decoder layer that reads tokens and features of a target, and predicts what follows:

features   fc(hidden states behind some of the target's layers, side by side)        [T, E]
input      norm(embedding of the next token) and norm(features), side by side        [T, 2 E]
layer      attention over the input, then a feed-forward part; the stream begins with the features
states     what the layer leaves: the features of the next token, where the target has none yet
logits     of `draft_vocab_size` tokens, whose numbers in the vocabulary `token_map` has

The layer of a checkpoint that predicts one token more (multi-token prediction, MTP), of DeepSeek-V3, GLM-4.5,
Qwen3-Next, Qwen3.5 and what shares their form:

features   norm(what the target's last layer leaves)                                       [T, E]
input      projection of norm(embedding of the next token) and norm(features), side by side
layer      as the target's last one that attends, with weights of its own
states     what the layer leaves: the features of the next token, where the target has none yet; in Qwen's
           families norm(states)
logits     head(norm(states)), of the whole vocabulary

Source of MTP: DeepSeek-AI, *DeepSeek-V3 Technical Report*, 2024, section 2.2; features and states as SGLang
and vLLM take them.
"""

import re
from collections.abc import Sequence

import torch

from kernels.api import InputBatch, LayerCache, adapters
from worker.config.decoder import DecoderFamily
from worker.families.registry import DECODERS
from worker.layers.attention.rotary import Rotary, rotary_order
from worker.layers.attention.self_attention import Attention, SelfAttention
from worker.layers.base import Weight
from worker.layers.embedding import VocabEmbedding
from worker.layers.linear import RowLinear, column_linear, qkv_linear
from worker.layers.mlp import GatedMLP
from worker.layers.norm import RMSNorm
from worker.models.transformer import block
from worker.parallel import Placement
from worker.speculation.models.features import Head
from worker.speculation.models.head_config import HeadConfig, MtpConfig
from worker.weights.loader import weight_table
from worker.weights.source import TensorSource

EAGLE_NAMES: dict[str, tuple[str, ...]] = {
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
EAGLE_UNUSED = r"t2d|d2t|midlayer\.self_attn\.rotary_emb\.inv_freq|embed_tokens\.weight"
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

    def logits(self, hidden: torch.Tensor, adapters: adapters.StepAdapters | None = None) -> torch.Tensor:
        """[A, E] -> [A, V] float32: of the target's vocabulary, -inf for tokens that the head lacks."""
        logits = self.head.logits(hidden, adapters)
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
        RowLinear(heads * head_dim, layer.hidden_size, layer.output_bias, place, units=heads),
    )


Names = dict[str, tuple[str, ...]]
_MTP_LAYER = re.compile(r"model\.(language_model\.)?layers\.\{layer\}")
MTP_UNUSED = r".*"
"""Pattern of tensors beside these: the checkpoint is that of the target."""


class MtpHead(Head):
    """A layer without its weights."""

    def __init__(self, config: MtpConfig, place: Placement, target: VocabEmbedding) -> None:
        """target: the embedding of the target."""
        super().__init__()
        layer, like = config.layer, config.like
        width, rope = layer.hidden_size, layer.ropes[like]
        self.norms_states = config.is_beside

        def norm() -> RMSNorm:
            return RMSNorm(width, layer.norm_eps, place, layer.norm_offset)

        self.target_norm, self.token_norm, self.feature_norm = norm(), norm(), norm()
        self.rotary = None if rope is None else Rotary(rope, layer.head_dim, place.device)
        self.join = column_linear(2 * width, (width,), False, place)
        self.layers = (block(layer, like, place),)
        self.blocks = torch.nn.ModuleList(self.layers)
        self.norm = norm()
        self.head = VocabEmbedding(layer.vocab_size, width, place)
        self._embed = (target,)  # in a tuple: it is no part of the head
        self.features = self.states = torch.empty(0)

    @property
    def looked_up(self) -> None:
        """The table is the target's."""
        return None

    def fuse(self, captured: Sequence[torch.Tensor]) -> torch.Tensor:
        (stream,) = captured
        return self.target_norm(stream)

    def forward(self, batch: InputBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        """The batch has for each position the token behind it."""
        (embed,) = self._embed
        both = self.token_norm(embed(batch)), self.feature_norm(self.features)
        x = self.join(torch.cat(both, dim=-1), batch)
        rotation = None if self.rotary is None else self.rotary.rotation(batch)
        x, residual = self.layers[0].forward(x, None, batch, caches[0], rotation)
        hidden, stream = self.norm.add(x, residual)
        self.states = hidden if self.norms_states else stream
        return hidden


def mtp_weights(head: MtpHead, config: MtpConfig, checkpoint: TensorSource) -> list[Weight]:
    """Returns where the tensors of a checkpoint go."""
    family = DECODERS[config.layer.architecture]
    module, names = (
        _names_beside(family, checkpoint) if config.is_beside else _names_behind(config, checkpoint)
    )
    tables = []
    for of_layer in ({**family.names, **family.other_names}, family.names):
        own = {
            path: tuple(_MTP_LAYER.sub(module, each) for each in modules)
            for path, modules in of_layer.items()
            if path.startswith("blocks.")
        }
        tables.append(weight_table(head, own | names))
    return next((table for table in tables if all(each.name in checkpoint for each in table)), tables[-1])


def _names_behind(config: MtpConfig, checkpoint: TensorSource) -> tuple[str, Names]:
    """Returns the module of a layer behind all others, and the names of what is around it."""
    module = f"model.layers.{config.number}"
    own_head = f"{module}.shared_head.head"
    return module, {
        "target_norm": ("model.norm",),
        "token_norm": (f"{module}.enorm",),
        "feature_norm": (f"{module}.hnorm",),
        "join": (f"{module}.eh_proj",),
        "norm": (f"{module}.shared_head.norm",),
        "head": (own_head if f"{own_head}.weight" in checkpoint else "lm_head",),
    }


def _names_beside(family: DecoderFamily, checkpoint: TensorSource) -> tuple[str, Names]:
    """As _names_behind(), of a layer under `mtp`; where weights are tied, the head is the embedding."""
    head = family.names["head"] if "lm_head.weight" in checkpoint else family.names["embedding"]
    return "mtp.layers.0", {
        "target_norm": family.names["norm"],
        "token_norm": ("mtp.pre_fc_norm_embedding",),
        "feature_norm": ("mtp.pre_fc_norm_hidden",),
        "join": ("mtp.fc",),
        "norm": ("mtp.norm",),
        "head": head,
    }
