"""Formulas of products in few bits, in float64, for tests of kernels.cpu.matmul and kernels.triton.matmul."""

import torch

from kernels.cpu.matmul.int8 import quantize_reference
from kernels.triton.matmul.low_bit_weight import LowBitWeight


def quantized_linear_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """The formula. [T, K], [N, K], [N] -> [T, N] float64."""
    (q, u), (p, v) = quantize_reference(x), quantize_reference(weight)
    result = (q.double() @ p.double().T) * u.double()[:, None] * v.double()
    return result if bias is None else result + bias.double()


def low_bit_linear_reference(
    x: torch.Tensor, weight: LowBitWeight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The formula in float64, with values of w in x's dtype. [T, K] -> [T, N]."""
    result = x.double() @ weight.values().to(x.dtype).double().T
    return result if bias is None else result + bias.double()


def sum_ranges_reference(parts: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Computes the formula in float64: [R, T, N] -> [T, N]."""
    total = parts.double().sum(0)
    return total if bias is None else total + bias.double()
