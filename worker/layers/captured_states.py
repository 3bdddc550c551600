"""Hidden states of a step behind some of a decoder's blocks, copied out of the residual stream for what reads
them besides the next block (worker.speculation.models). The stream itself keeps its bits."""

from collections.abc import Sequence

import torch

from worker.layers.base import Layer


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

    def forward(self, number: int, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Copies the stream behind block `number`, if it is one of these. x, residual: see AnyBlock. Returns
        x."""
        if number in self.after:
            copied = x.clone() if residual is None else self.ops.scaled_add(x, residual, self.factor, True)
            self._states[number] = copied
        return x
