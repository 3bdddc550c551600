"""Inputs of products."""

import torch

from tests.kernels.tolerances import random

SHAPES = [(1, 1), (2, 48), (3, 5), (62, 47), (64, 96), (577, 49), (1536, 100), (33, 700)]
"""(K, N): odd K, K that is no multiple of 32, N that is no multiple of 48 or 16, tiles cut everywhere."""


def inputs(
    tokens: int, in_features: int, out_features: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weight, bias; results near 1."""
    x = random(tokens, in_features, dtype=dtype)
    weight = random(out_features, in_features, dtype=dtype, seed=1, scale=in_features**-0.5)
    return x, weight, random(out_features, dtype=dtype, seed=2)
