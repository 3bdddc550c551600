"""Norms of heads, with random weights."""

from dataclasses import dataclass

import torch

from kernels.ops.layers.norms import rms_norm
from tests.kernels.tolerances import random


@dataclass(frozen=True)
class Norm:
    """A HeadNorm."""

    weight: torch.Tensor
    eps: float
    offset: float

    def __call__(self, x: torch.Tensor, /) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps, self.offset)


def norm(width: int, seed: int, eps: float = 1e-5, offset: float = 0.0) -> Norm:
    """Returns the norm of so many values, in float32."""
    return Norm(random(width, dtype=torch.float32, seed=seed), eps, offset)
