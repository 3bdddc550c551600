"""Feed-forward layers, plain and gated."""

from abc import ABC, abstractmethod

import torch

from kernels.api import InputBatch
from worker.layers.base import Layer
from worker.layers.linear import ColumnLinear, RowLinear
from worker.layers.mlp.gated_activation import GatedActivation


class FeedForward(Layer, ABC):
    """A block's second part: an MLP, or experts in its place."""

    @abstractmethod
    def forward(self, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[T, E] -> [T, E]."""


class MLP(FeedForward):
    """down(f(up(x)))."""

    def __init__(self, up: ColumnLinear, down: RowLinear, activation_name: str) -> None:
        super().__init__()
        self.up, self.down, self.activation = up, down, activation_name

    def forward(self, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        return self.down(self.ops.activation(self.up(x, batch), self.activation), batch)


class GatedMLP(FeedForward):
    """down(f(factor * gate(x)) * up(x))."""

    def __init__(
        self, gate_up: ColumnLinear, down: RowLinear, activation_name: str, factor: float = 1.0
    ) -> None:
        super().__init__()
        self.gate_up, self.down = gate_up, down
        self.activation = GatedActivation(activation_name, factor)

    def forward(self, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        return self.down(self.activation(self.gate_up(x, batch)), batch)
