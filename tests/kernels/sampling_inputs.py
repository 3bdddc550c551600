"""Logits and weights for the tests of the sampling kernels: ugly on purpose."""

import torch

# (A, W): one row, one token, odd sizes, more than one width of the partial sorts.
SHAPES = [(1, 1), (1, 7), (3, 2), (5, 50), (2, 257), (3, 1031)]


def tied_logits(a: int, w: int, seed: int = 0) -> torch.Tensor:
    """[A, W] float32 with many equal values, zeros of both signs, and some -inf."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-3, 4, (a, w), generator=generator).float() / 2
    logits[torch.rand(a, w, generator=generator) < 0.2] = -0.0
    logits[torch.rand(a, w, generator=generator) < 0.1] = -torch.inf
    logits[:, w // 2] = 1.0
    return logits


def smooth_logits(a: int, w: int, seed: int = 0) -> torch.Tensor:
    """[A, W] float32, no two equal."""
    return torch.randn(a, w, generator=torch.Generator().manual_seed(seed)) * 3


def weights_of(logits: torch.Tensor) -> torch.Tensor:
    """Float64 weights, the largest 1."""
    return (logits.double() - logits.double().amax(-1, keepdim=True)).exp()


def spread(a: int, low: float, high: float) -> torch.Tensor:
    """[A] float64 from low to high."""
    return torch.linspace(low, high, a, dtype=torch.float64)
