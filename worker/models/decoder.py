"""The decoder that most families are: embedding, blocks, norm, head."""

from collections.abc import Sequence

import torch

from kernels.api import InputBatch, LayerCache
from worker.layers.attention.rotary import Angles
from worker.layers.block import AnyBlock, CapturedStates
from worker.layers.embedding import VocabEmbedding
from worker.layers.norm import Norm
from worker.models.base import LanguageModel


class Decoder(LanguageModel):
    """A LanguageModel whose steps can be programs, if those of its layers can."""

    def __init__(
        self,
        embedding: VocabEmbedding,
        blocks: Sequence[AnyBlock],
        norm: Norm | None,
        head: VocabEmbedding | None = None,
        rotaries: Sequence[Angles | None] = (),
    ) -> None:
        """head: None where the weights are tied, and the embedding computes logits. rotaries: of each block,
        one object for all that rotate alike; None: positions change nothing there."""
        super().__init__()
        # In the order in which the weights were allocated: packing reuses their memory from the front.
        self.embedding = embedding
        self.rotary_of = tuple(rotaries) or (None,) * len(blocks)
        self.rotaries = torch.nn.ModuleList(dict.fromkeys(filter(None, self.rotary_of)))
        self.layers = tuple(blocks)
        self.blocks = torch.nn.ModuleList(blocks)
        self.norm, self.head = norm, embedding if head is None else head
        self.capturing: CapturedStates | None = None

    def capture(self, after: Sequence[int]) -> None:
        """Has each step copy its hidden states behind so many blocks, see `captured`. Call it before
        kernels are chosen."""
        self.capturing = CapturedStates(after, 1.0 if self.norm is None else self.norm.residual_scale)

    @property
    def captured(self) -> Sequence[torch.Tensor]:
        """Those of the step; of a program that was recorded last, its buffers [M, E]."""
        return () if self.capturing is None else self.capturing.states

    def embed(self, batch: InputBatch) -> torch.Tensor:
        """Returns the input of the first block, [T, E]."""
        return self.embedding(batch)

    def forward(self, batch: InputBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        rotations = {rotary: rotary.rotation(batch) for rotary in self._distinct_rotaries()}
        x: torch.Tensor = self.embed(batch)
        residual: torch.Tensor | None = None
        for number, (block, cache, rotary) in enumerate(
            zip(self.layers, caches, self.rotary_of, strict=True), start=1
        ):
            rotation = None if rotary is None else rotations[rotary]
            with self.ops.layer():
                x, residual = block.forward(x, residual, batch, cache, rotation)
            if self.capturing is not None:
                self.capturing(number, x, residual)
        if self.norm is not None:
            return self.norm.add(x, residual)[0]
        return x if residual is None else residual + x

    def _distinct_rotaries(self) -> list[Angles]:
        return [rotary for rotary in dict.fromkeys(self.rotary_of) if rotary is not None]
