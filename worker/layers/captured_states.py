"""Hidden states of a step behind some of a decoder's blocks, copied out of the residual stream for what reads
them besides the next block (worker.heads). The stream itself keeps its bits."""

from collections.abc import Sequence

import torch

from worker.layers.base import Layer
from worker.layers.scaled_add import ScaledAdd
from worker.lowering.builder import ProgramBuilder


class CapturedStates(Layer):
    """Copies the residual stream behind so many blocks. It has no parameters."""

    def __init__(self, after: Sequence[int], width: int, factor: float = 1.0) -> None:
        """after: numbers of blocks, 1: behind the first one. factor: of what a block adds to the stream."""
        super().__init__()
        self.after = tuple(after)
        self.copy = ScaledAdd(width, factor)
        self._states: dict[int, torch.Tensor] = {}

    @property
    def states(self) -> list[torch.Tensor]:
        """What was copied last, in the order of `after`: [T, E] each, or the buffers of a program [M, E]."""
        return [self._states[number] for number in self.after]

    def forward(self, number: int, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Copies the stream behind block `number`, if it is one of these. x, residual: see Block.forward().
        Returns x."""
        if number in self.after:
            self._states[number] = x.clone() if residual is None else self.copy(x, residual)
        return x

    def lower(
        self, builder: ProgramBuilder, number: int, x: torch.Tensor, residual: torch.Tensor | None
    ) -> None:
        if number in self.after:
            buffer = builder.buffers.shared(f"captured {number}", x.shape[1])
            self._states[number] = self.copy.lower(builder, x, residual, buffer)
