"""What every model family offers, and how the rest of the worker finds it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels.api import InputBatch, KVCacheSpec, LayerCache, RowStateSpec, adapters
from worker.audio.encoder import AudioEncoder
from worker.layers.attention.self_attention import Attention, SideBySide, StatefulPart
from worker.layers.base import Layer
from worker.layers.embedding import VocabEmbedding
from worker.layers.latent import LatentAttention
from worker.layers.targets import TargetModules
from worker.parallel import Placement
from worker.vision.encoder import ImageEncoder


class LanguageModel(Layer, ABC):
    """forward() computes the hidden states of all tokens of a step; logits() is for those that are sampled
    from."""

    embedding: VocabEmbedding
    head: VocabEmbedding  # the embedding itself where the weights are tied
    has_head = True
    """Whether logits are ever computed."""
    gets_tokens = False
    """Whether this rank has no head, as another one chooses the tokens."""
    has_token_types = False
    """Whether forward() depends on the types of tokens."""
    target_modules: TargetModules | None = None
    """Where adapters go; None: the model takes none."""

    def __init__(self) -> None:
        super().__init__()
        self.vision: ImageEncoder | AudioEncoder | None = None
        """What makes vectors of images or of sounds, which stand in place of tokens; None: nothing does."""

    def kv_cache_specs(self) -> tuple[KVCacheSpec, ...]:
        """What each layer that attends keeps in the KV cache, in the order of the layers."""
        return tuple(layer.spec for layer in self.modules() if isinstance(layer, Attention | LatentAttention))

    def layer_specs(self) -> tuple[tuple[KVCacheSpec | RowStateSpec, ...], ...]:
        """What each layer keeps of blocks, of rows, or of both, in the order of forward()'s caches."""
        both = [layer for layer in self.modules() if isinstance(layer, SideBySide)]
        within = {part for layer in both for part in layer.modules() if part is not layer}
        found: list[tuple[KVCacheSpec | RowStateSpec, ...]] = []
        for layer in self.modules():
            if isinstance(layer, SideBySide):
                found.append(layer.specs)
            elif isinstance(layer, StatefulPart) and layer not in within:
                found.append((layer.state_spec,))
            elif isinstance(layer, Attention | LatentAttention) and layer not in within:
                found.append((layer.spec,))
        return tuple(found)

    def state_specs(self) -> list[RowStateSpec]:
        """What layers keep of rows, one per layer that has a state."""
        return [spec for specs in self.layer_specs() for spec in specs if isinstance(spec, RowStateSpec)]

    @property
    def looked_up(self) -> Layer | None:
        """The embedding, if nothing is multiplied by it."""
        return self.embedding if self.embedding is not self.head else None

    @abstractmethod
    def forward(self, batch: InputBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        """Returns the hidden states [T, E] of all tokens, after the last norm. caches: one per layer."""

    @property
    def captured(self) -> Sequence[torch.Tensor]:
        """Hidden states [T, E] of the last step behind the blocks that Decoder.capture() names; the next step
        overwrites them."""
        return ()

    def logits(self, hidden: torch.Tensor, adapters: adapters.StepAdapters | None = None) -> torch.Tensor:
        """[A, E] -> [A, V] float32. adapters: of these rows."""
        return self.head.logits(hidden, adapters)

    def sampled_logits(self, hidden: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """Returns the logits [A, V] float32 of the tokens that a batch is sampled from. hidden: [T, E], what
        forward() returned for it last. The next step may overwrite the result."""
        tokens = batch.logit_tokens
        sampled = hidden if tokens is None else hidden.index_select(0, tokens)
        return self.logits(sampled, batch.logit_adapters)

    def attention_heads(self) -> tuple[int, int] | None:
        """Returns the head size and the query heads per KV head that all layers have; None: they differ."""
        layers = [layer for layer in self.modules() if isinstance(layer, Attention | LatentAttention)]
        sizes = {(each.spec.head_dim, each.num_heads // each.spec.num_kv_heads) for each in layers}
        return sizes.pop() if len(sizes) == 1 else None

    def chosen_tokens(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """[T, E] -> [A] int64, for Sampler.take(), where forward() has chosen tokens already, as it may for
        an InputBatch that wants them; they last until the next step. None: choose by sampled_logits()."""
        return None


@dataclass(frozen=True)
class Family:
    """How models of one or more architectures are built and loaded."""

    build: Callable[[Any, Placement], LanguageModel]
    """From the configuration that worker.config read. The parameters are not filled."""
    names: Mapping[str, tuple[str, ...]]
    """Path of a layer -> modules of the checkpoint that it is made of; see worker.weights.loader."""
    unused: str = r"(?!)"
    """Pattern of tensors that checkpoints hold although the model does not need them."""
    optional_prefix: str = ""
    """Part of the names in the checkpoint that some checkpoints lack."""
    other_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names in place of some of these, in checkpoints that have all tensors under these."""
    spellings: tuple[Mapping[str, str], ...] = ()
    """Prefixes of names, and what stands for them in some checkpoints that have all tensors under these."""
