"""The product of a linear layer whose weight is held in 4 or 8 bits.

    y[t, n] = sum_k x[t, k] * w[n, k] + b[n]

x: [T, K] and b: [N] or None, of one dtype; w: kernels.triton.matmul.low_bit_weight, whose values are rounded
to that dtype; y: [T, N], of that dtype, or float32 if wide. The weight is unpacked first;
kernels.triton.matmul.low_bit_linear makes the values in registers.

Bytes moved: those of the weight, T * K read and T * N written.
"""

import torch

from kernels.ops.layers.linear import linear
from kernels.triton.matmul.low_bit_weight import LowBitWeight


def low_bit_linear(
    x: torch.Tensor, weight: LowBitWeight, bias: torch.Tensor | None = None, wide: bool = False
) -> torch.Tensor:
    """[T, K] -> [T, N]. wide: the result is float32."""
    return linear(x, weight.values().to(x.dtype), bias, wide)
