"""The decoder that most families are: embedding, blocks, norm, head."""

from collections.abc import Sequence

import torch

from kernels.api import InputBatch, LayerCache
from worker.layers.attention.rotary import Angles
from worker.layers.block import AnyBlock, Stream
from worker.layers.embedding import VocabEmbedding
from worker.layers.norm import Norm
from worker.models.staged import StagedModel


class Decoder(StagedModel):
    """A StagedModel whose steps can be programs, if those of its layers can."""

    layers: tuple[AnyBlock, ...]

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
        self.hold(blocks, rotaries or (None,) * len(blocks), norm, embedding if head is None else head)

    def embed(self, batch: InputBatch) -> torch.Tensor:
        """Returns the input of the first block, [T, E]."""
        return self.embedding(batch)

    def forward(self, batch: InputBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        hidden = self.begin(batch, caches)
        return self.end(len(hidden)) if self.ends_elsewhere else hidden

    @property
    def ends_elsewhere(self) -> bool:
        """Whether this is the first of several stages: begin() hands on what end() gets back."""
        return self.stage.is_first and not self.stage.is_last

    def end(self, tokens: int) -> torch.Tensor:
        """Returns the hidden states of so many tokens, which the last stage sends."""
        assert self.handover is not None
        return self.handover.receive(tokens)[0]

    def begin(self, batch: InputBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        """Computes the layers of this stage, and hands on hidden states [T, E] to the next one."""
        rotations = {rotary: rotary.rotation(batch) for rotary in self._distinct_rotaries()}
        x, residual = self._input(batch)
        for number, (block, cache, rotary) in enumerate(
            zip(self.layers, caches, self.rotary_of, strict=True), 1 + self.first_layer
        ):
            rotation = None if rotary is None else rotations[rotary]
            with self.ops.layer():
                x, residual = block.forward(x, residual, batch, cache, rotation)
            x = batch.deepened(x, number)
            if self.capturing is not None:
                self.capturing(number, x, residual)
        if self.handover is not None and not self.stage.is_last:
            self.handover.send(x, residual)
            return x
        if self.norm is not None:
            hidden, _ = self.norm.add(x, residual)
        else:
            hidden = x if residual is None else residual + x
        if self.handover is not None:
            self.handover.send(hidden)
        return hidden

    def _input(self, batch: InputBatch) -> Stream:
        """Returns the input of the first block of this stage."""
        if self.handover is None or self.stage.is_first:
            return self.embed(batch), None
        return self.handover.receive(len(batch.token_ids), self.layers[0].has_residual)
