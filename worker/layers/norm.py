"""Norms over the hidden size, or over the size of a head."""

from collections.abc import Iterator

import torch

from kernels.layer_norm import layer_norm
from kernels.rms_norm import add_rms_norm, rms_norm
from worker.layers.layer import Weight, WeightOwner
from worker.parallel import Placement


class RMSNorm(WeightOwner):
    """Root-mean-square norm, alone or after the residual addition."""

    def __init__(self, width: int, eps: float, place: Placement) -> None:
        super().__init__()
        self.eps = eps
        self.weight = place.empty(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., E] -> [..., E]."""
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(x + residual), x + residual)."""
        return add_rms_norm(x, residual, self.weight, self.eps)

    def weights(self, *names: str) -> Iterator[Weight]:
        """One name."""
        (name,) = names
        yield Weight(f"{name}.weight", tuple(self.weight.shape), self.weight)


class LayerNorm(WeightOwner):
    """Layer norm with a bias, or without parameters."""

    def __init__(self, width: int, eps: float, place: Placement, affine: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = place.empty(width) if affine else None
        self.bias = place.empty(width) if affine else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., E] -> [..., E]."""
        return layer_norm(x, self.weight, self.bias, self.eps)

    def weights(self, *names: str) -> Iterator[Weight]:
        """One name."""
        (name,) = names
        if self.weight is not None and self.bias is not None:
            yield Weight(f"{name}.weight", tuple(self.weight.shape), self.weight)
            yield Weight(f"{name}.bias", tuple(self.bias.shape), self.bias)
