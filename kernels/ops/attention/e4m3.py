"""Keys and values of 8 bits: float8 e4m3 (4 bits of exponent, 3 of the fraction).

    stored = e4m3(min(max(x, -448), 448))          nearest, ties to even; NaN stays NaN

448 is the largest number of the format, which has no infinity. At most 1/16 of a value is lost from 2 ** -6
on, and at most 2 ** -10 below. Widening is exact in float16, bfloat16 and float32.

On a CPU: kernels.cpu.attention.e4m3_kv. On CUDA: kernels.triton.attention.fp8, with a scale for each head.
"""

import torch

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0


def narrowed(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x as a cache of this dtype holds it: e4m3, or that of x."""
    return x if x.dtype == dtype else x.clamp(-LARGEST, LARGEST).to(dtype)


def index_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, of a dtype that torch indexes."""
    return tensor.view(torch.uint8) if tensor.dtype == E4M3 else tensor
