"""The product of a linear layer.

    y[t, n] = sum_k x[t, k] * w[n, k] + b[n]

x: [T, K], w: [N, K], b: [N] or None, all of one dtype; y: [T, N], of that dtype, or float32 if wide. w may be
held in 4 or 8 bits (kernels.triton.matmul.low_bit_weight), with values that are rounded to that dtype.

The CPU's kernels multiply by packed weights (kernels.cpu.matmul.packed). On a CUDA device products are those
of kernels.triton.matmul.linear, whose sums have one order for any T; those of torch, which the flag
--fast-matmul asks for, may depend on T in the last bits.

Bytes moved: those of the weight, T * K read and T * N written.
"""

import torch
import torch.nn.functional as F

from kernels.triton.matmul.low_bit_weight import LowBitWeight
from kernels.triton.matmul.ranges import SumOrder


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    wide: bool = False,
    order: SumOrder | None = None,
) -> torch.Tensor:
    """[T, K] -> [T, N]. wide: the result is float32. order: of sums, on a CUDA device; None: that of a matrix
    of which no other rank has a part.

    On a CPU 16-bit values are widened to float32, as torch multiplies them very slowly there, and the result
    is rounded to 16 bits even if wide.
    """
    if x.device.type == "cpu" and x.dtype.itemsize == 2:
        result = F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)
    else:
        result = F.linear(x, weight, bias)
    return result.float() if wide else result


def low_bit_linear(
    x: torch.Tensor, weight: LowBitWeight, bias: torch.Tensor | None = None, wide: bool = False
) -> torch.Tensor:
    """[T, K] -> [T, N]. wide: the result is float32."""
    return linear(x, weight.values().to(x.dtype), bias, wide)
