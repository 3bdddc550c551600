"""The activation between a gated product and the one behind it."""

import torch

from worker.layers.base import Layer


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
