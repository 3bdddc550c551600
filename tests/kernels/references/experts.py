"""Formulas of products by expert, in float64, for tests of kernels.triton.experts."""

import torch

from kernels.triton.matmul.low_bit_weight import LowBitWeight


def grouped_low_bit_linear_reference(
    x: torch.Tensor,
    weight: LowBitWeight,
    bias: torch.Tensor | None,
    owners: torch.Tensor,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """The formula in float64, pair by pair, with values of w in x's dtype. Returns [P, F]."""
    return grouped_linear_reference(x, weight.values().to(x.dtype), bias, owners, rows)


def grouped_linear_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    owners: torch.Tensor,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """The formula in float64, pair by pair. Returns [P, F]."""
    read = range(len(owners)) if rows is None else rows.tolist()
    pairs = list(zip(read, owners.tolist(), strict=True))
    results = [weight[expert].double() @ x[row].double() for row, expert in pairs]
    if bias is not None:
        results = [y + bias[expert].double() for y, (_, expert) in zip(results, pairs, strict=True)]
    return torch.stack(results)
