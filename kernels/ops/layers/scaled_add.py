"""Additions and factors that no norm takes along: x * factor + y, [T, E]. y: None stands for zeros."""

import torch


def scaled_add(x: torch.Tensor, y: torch.Tensor | None, factor: float = 1.0) -> torch.Tensor:
    """[T, E] -> [T, E], a new tensor."""
    return x * factor if y is None else torch.add(y, x, alpha=factor)
