"""Feed-forward layers, plain and gated, and the activation between a gated product and the one behind it."""

from abc import ABC, abstractmethod

import torch

from kernels.api import InputBatch
from worker.layers.base import Layer
from worker.layers.linear import ColumnLinear, RowLinear


class GatedActivation(Layer):
    """f(factor * gate) * up. It has no parameters."""

    def __init__(self, name: str, factor: float = 1.0) -> None:
        """name: of f, as in kernels.ops.layers.activation."""
        super().__init__()
        self.name, self.factor = name, factor

    def forward(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 * I], gate before up -> [T, I]."""
        return self.ops.gated_activation(gate_up, self.name, self.factor)


class ClampedGate(Layer):
    """kernels.ops.layers.activation, of gpt-oss's experts. It has no parameters."""

    def __init__(self, alpha: float, limit: float) -> None:
        super().__init__()
        self.alpha, self.limit = alpha, limit

    def forward(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 * I], gate before up -> [T, I]."""
        return self.ops.clamped_swiglu(gate_up, self.alpha, self.limit)


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
        return self.down(self.activation(self.gate_up(x, batch)), batch)
