"""Transformer blocks: attention and feed-forward parts with norms and a residual stream; and hidden states of
a step behind some of a decoder's blocks, copied out of that stream for what reads them besides the next block
(worker.speculation.models). The stream itself keeps its bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from kernels.api import InputBatch, LayerCache, Rotation
from worker.layers.attention.self_attention import AttentionPart
from worker.layers.base import Layer
from worker.layers.mlp import FeedForward
from worker.layers.norm import Norm


class CapturedStates(Layer):
    """Copies the residual stream behind so many blocks. It has no parameters."""

    def __init__(self, after: Sequence[int], factor: float = 1.0) -> None:
        """after: numbers of blocks, 1: behind the first one. factor: of what a block adds to the stream."""
        super().__init__()
        self.after, self.factor = tuple(after), factor
        self._states: dict[int, torch.Tensor] = {}

    @property
    def states(self) -> list[torch.Tensor]:
        """What was copied last, in the order of `after`: [T, E] each, or the buffers of a program [M, E]."""
        return [self._states[number] for number in self.after]

    def __getitem__(self, number: int) -> torch.Tensor:
        """Returns what was copied last behind block `number`, [T, E]."""
        return self._states[number]

    def __setitem__(self, number: int, state: torch.Tensor) -> None:
        """Takes what another stage has copied behind block `number`, [T, E]."""
        self._states[number] = state

    def forward(self, number: int, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Copies the stream behind block `number`, if it is one of these. x, residual: see AnyBlock. Returns
        x."""
        if number in self.after:
            copied = x.clone() if residual is None else self.ops.scaled_add(x, residual, self.factor, True)
            self._states[number] = copied
        return x


Part = Callable[[torch.Tensor], torch.Tensor]
"""A part of a block, in one step."""
Stream = tuple[torch.Tensor, torch.Tensor | None]
"""What is still to be added to the residual stream, and the stream, [T, E] each. None: the former is the
stream."""


class AnyBlock(Layer, ABC):
    """One layer of a decoder. forward() returns two values, so call it by name."""

    attention: AttentionPart
    mlp: FeedForward
    has_residual = True
    """Whether the Stream that it returns has two tensors."""

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        batch: InputBatch,
        cache: LayerCache,
        rotation: Rotation | None = None,
    ) -> Stream:
        """x, residual: a Stream, of which the block returns the next one."""

        def attend(x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, batch, cache, rotation)

        def feed(x: torch.Tensor) -> torch.Tensor:
            return self.mlp(x, batch)

        return self.compute(x, residual, attend, feed)

    @abstractmethod
    def compute(self, x: torch.Tensor, residual: torch.Tensor | None, attend: Part, feed: Part) -> Stream:
        """Computes forward(). attend, feed: the attention part and the feed-forward part of this step,
        [T, E] -> [T, E]."""


class Block(AnyBlock):
    """Attention and feed-forward, each behind a norm that also adds to the residual stream."""

    def __init__(
        self, attention_norm: Norm, attention: AttentionPart, mlp_norm: Norm, mlp: FeedForward
    ) -> None:
        super().__init__()
        self.attention_norm, self.attention = attention_norm, attention
        self.mlp_norm, self.mlp = mlp_norm, mlp

    def compute(self, x: torch.Tensor, residual: torch.Tensor | None, attend: Part, feed: Part) -> Stream:
        x, residual = self.attention_norm.add(x, residual)
        x, residual = self.mlp_norm.add(attend(x), residual)
        return feed(x), residual


class AroundNormBlock(Block):
    """Attention and feed-forward, each between two norms."""

    def __init__(
        self,
        attention_norm: Norm,
        attention: AttentionPart,
        attention_output_norm: Layer,
        mlp_norm: Norm,
        mlp: FeedForward,
        mlp_output_norm: Layer,
    ) -> None:
        super().__init__(attention_norm, attention, mlp_norm, mlp)
        self.attention_output_norm, self.mlp_output_norm = attention_output_norm, mlp_output_norm

    def compute(self, x: torch.Tensor, residual: torch.Tensor | None, attend: Part, feed: Part) -> Stream:
        x, residual = self.attention_norm.add(x, residual)
        x, residual = self.mlp_norm.add(self.attention_output_norm(attend(x)), residual)
        return self.mlp_output_norm(feed(x)), residual


class OutputNormBlock(AnyBlock):
    """Attention and feed-forward, whose outputs are normed before they are added to the residual stream."""

    def __init__(
        self, attention: AttentionPart, attention_output_norm: Norm, mlp: FeedForward, mlp_output_norm: Norm
    ) -> None:
        super().__init__()
        self.attention, self.attention_output_norm = attention, attention_output_norm
        self.mlp, self.mlp_output_norm = mlp, mlp_output_norm

    def compute(self, x: torch.Tensor, residual: torch.Tensor | None, attend: Part, feed: Part) -> Stream:
        stream = x if residual is None else self.ops.scaled_add(x, residual)
        stream = self.ops.scaled_add(self.attention_output_norm(attend(stream)), stream)
        return self.mlp_output_norm(feed(stream)), stream


class ParallelBlock(AnyBlock):
    """Attention and feed-forward side by side, behind one norm."""

    def __init__(self, attention_norm: Norm, attention: AttentionPart, mlp: FeedForward) -> None:
        super().__init__()
        self.attention_norm, self.attention, self.mlp = attention_norm, attention, mlp

    def compute(self, x: torch.Tensor, residual: torch.Tensor | None, attend: Part, feed: Part) -> Stream:
        x, residual = self.attention_norm.add(x, residual)
        attended = attend(x)
        return self.ops.scaled_add(attended, feed(x)), residual


class PostNormBlock(Block):
    """Attention and feed-forward, each with a residual and then a norm. x is all of the stream."""

    has_residual = False

    def compute(self, x: torch.Tensor, residual: torch.Tensor | None, attend: Part, feed: Part) -> Stream:
        assert residual is None
        x, _ = self.attention_norm.add(attend(x), x)
        x, _ = self.mlp_norm.add(feed(x), x)
        return x, None
