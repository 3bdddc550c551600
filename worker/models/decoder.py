"""The decoder that most families are: embedding, blocks, norm, head."""

from collections.abc import Sequence

import torch

from worker.attention.plan import LayerCache
from worker.layers.block import Block
from worker.layers.embedding import VocabEmbedding
from worker.layers.norm import Norm
from worker.layers.rotary import Rotary
from worker.lowering.builder import ProgramBuilder
from worker.lowering.rotation import LoweredRotation
from worker.model_input import InputBatch
from worker.models.base import LanguageModel


class Decoder(LanguageModel):
    """A LanguageModel whose steps can be lowered if its layers can."""

    def __init__(
        self,
        embedding: VocabEmbedding,
        blocks: Sequence[Block],
        norm: Norm | None,
        head: VocabEmbedding | None = None,
        rotary: Rotary | None = None,
    ) -> None:
        """head: None where the weights are tied, and the embedding computes logits."""
        super().__init__()
        # In the order in which the weights were allocated: packing reuses their memory from the front.
        self.embedding, self.rotary = embedding, rotary
        self.layers = tuple(blocks)
        self.blocks = torch.nn.ModuleList(blocks)
        self.norm, self.head = norm, embedding if head is None else head

    def embed(self, batch: InputBatch) -> torch.Tensor:
        """Returns the input of the first block, [T, E]."""
        return self.embedding(batch)

    def forward(self, batch: InputBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        """See LanguageModel."""
        rotation = None if self.rotary is None else self.rotary.rotation(batch)
        x: torch.Tensor = self.embed(batch)
        residual: torch.Tensor | None = None
        for block, cache in zip(self.layers, caches, strict=True):
            x, residual = block.forward(x, residual, batch, cache, rotation)
        if self.norm is not None:
            return self.norm.add(x, residual)[0]
        return x if residual is None else residual + x

    @property
    def can_lower(self) -> bool:
        """See Layer."""
        return self.norm is not None and super().can_lower

    def lower_embed(self, builder: ProgramBuilder) -> torch.Tensor:
        """See embed()."""
        return self.embedding.lower_lookup(builder)

    def lower(self, builder: ProgramBuilder, caches: Sequence[LayerCache]) -> torch.Tensor:
        """See forward()."""
        assert self.norm is not None
        rotation = None
        if self.rotary is not None:
            rotation = LoweredRotation(self.rotary.rotation)
            builder.on_run(rotation.update)
        x: torch.Tensor = self.lower_embed(builder)
        residual: torch.Tensor | None = None
        for block, cache in zip(self.layers, caches, strict=True):
            with builder.layer():
                x, residual = block.lower(builder, x, residual, cache, rotation)
        return self.norm.lower(builder, x, residual)[0]

    def lower_logits(self, builder: ProgramBuilder, hidden: torch.Tensor) -> torch.Tensor | None:
        """Returns the buffer of logits [M, V] float32 of all tokens. None: logits() must compute them."""
        return None if self.head.packed is None else self.head.lower_logits(builder, hidden)
