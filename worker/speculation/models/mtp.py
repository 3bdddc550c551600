"""The layer of a checkpoint that predicts one token more (multi-token prediction, MTP), as a head:
DeepSeek-V3, GLM-4.5, Qwen3-Next, Qwen3.5 and what shares their form.

features   norm(what the target's last layer leaves)                                       [T, E]
input      projection of norm(embedding of the next token) and norm(features), side by side
layer      as the target's last one that attends, with weights of its own
states     what the layer leaves: the features of the next token, where the target has none yet; in Qwen's
           families norm(states)
logits     head(norm(states)), of the whole vocabulary

Source: DeepSeek-AI, *DeepSeek-V3 Technical Report*, 2024, section 2.2; features and states as SGLang and vLLM
take them.
"""

import re
from collections.abc import Sequence

import torch

from kernels.api import InputBatch, LayerCache
from worker.config.decoder import DecoderFamily
from worker.families.registry import DECODERS
from worker.layers.attention.rotary import Rotary
from worker.layers.base import Weight
from worker.layers.embedding import VocabEmbedding
from worker.layers.linear import column_linear
from worker.layers.norm import RMSNorm
from worker.models.transformer import block
from worker.parallel import Placement
from worker.speculation.models.features import Head
from worker.speculation.models.head_config import MtpConfig
from worker.weights.loader import weight_table
from worker.weights.source import TensorSource

Names = dict[str, tuple[str, ...]]
_LAYER = re.compile(r"model\.(language_model\.)?layers\.\{layer\}")
UNUSED = r".*"
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
            path: tuple(_LAYER.sub(module, each) for each in modules)
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
