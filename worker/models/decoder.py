"""The decoder that most families are: embedding, blocks, norm, head."""

from collections.abc import Sequence

import torch

from worker.attention.plan import LayerCache
from worker.layers.attention.rotary import Angles
from worker.layers.block import Block, OutputNormBlock, ParallelBlock
from worker.layers.captured_states import CapturedStates
from worker.layers.embedding import VocabEmbedding
from worker.layers.norm import Norm, RMSNorm
from worker.lowering.builder import ProgramBuilder
from worker.lowering.rotation import LoweredRotation
from worker.model_input import InputBatch
from worker.models.base import LanguageModel

AnyBlock = Block | OutputNormBlock | ParallelBlock


class Decoder(LanguageModel):
    """A LanguageModel whose steps can be lowered if its layers can."""

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
        use_kernels()."""
        norm = self.norm
        factor = norm.residual_scale if isinstance(norm, RMSNorm) else 1.0
        self.capturing = CapturedStates(after, self.embedding.width, factor)

    @property
    def captured(self) -> Sequence[torch.Tensor]:
        """Those of the step; of a program that was lowered last, its buffers [M, E]."""
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
            x, residual = block.forward(x, residual, batch, cache, rotation)
            if self.capturing is not None:
                self.capturing(number, x, residual)
        if self.norm is not None:
            return self.norm.add(x, residual)[0]
        return x if residual is None else residual + x

    @property
    def can_lower(self) -> bool:
        return self.norm is not None and super().can_lower

    def lower_embed(self, builder: ProgramBuilder) -> torch.Tensor:
        return self.embedding.lower_lookup(builder)

    def lower(self, builder: ProgramBuilder, caches: Sequence[LayerCache]) -> torch.Tensor:
        assert self.norm is not None
        rotations = {
            each: LoweredRotation(each.rotation, each.queries_only) for each in self._distinct_rotaries()
        }
        for lowered in rotations.values():
            builder.on_run(lowered.update, lowered.is_fixed)
        x: torch.Tensor = self.lower_embed(builder)
        residual: torch.Tensor | None = None
        for number, (block, cache, rotary) in enumerate(
            zip(self.layers, caches, self.rotary_of, strict=True), start=1
        ):
            rotation = None if rotary is None else rotations[rotary]
            with builder.layer():
                x, residual = block.lower(builder, x, residual, cache, rotation)
            if self.capturing is not None:
                self.capturing.lower(builder, number, x, residual)
        return self.norm.lower(builder, x, residual)[0]

    def lower_logits(self, builder: ProgramBuilder, hidden: torch.Tensor) -> torch.Tensor | None:
        """Returns the buffer of logits [M, V] float32 of all tokens. None: logits() must compute them."""
        return None if self.head.packed is None else self.head.lower_logits(builder, hidden)

    def _distinct_rotaries(self) -> list[Angles]:
        return [rotary for rotary in dict.fromkeys(self.rotary_of) if rotary is not None]
