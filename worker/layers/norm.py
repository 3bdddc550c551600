"""Norms over the hidden size, or over the size of a head."""

from collections.abc import Iterator

import torch

from kernels.cpu.elementwise.row_kernels import RowKernels
from kernels.ops.layers.layer_norm import layer_norm
from kernels.ops.layers.rms_norm import add_rms_norm, rms_norm
from worker.layers.base import Weight, WeightOwner
from worker.parallel import Placement


class RMSNorm(WeightOwner):
    """Root-mean-square norm, alone or after the residual addition."""

    def __init__(self, width: int, eps: float, place: Placement) -> None:
        super().__init__()
        self.eps = eps
        self.weight = place.empty(width)
        self.kernels: RowKernels | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Where the width fits."""
        self.kernels = kernels if self.weight.shape[0] % 16 == 0 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., E] -> [..., E]."""
        if self.kernels is not None:
            return self.kernels.rms_norm(x, self.weight, self.eps)
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(x + residual), x + residual)."""
        if self.kernels is not None:
            return self.kernels.add_rms_norm(x, residual, self.weight, self.eps)
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
