"""A KV cache of 8 bits a value: float8 e4m3 (4 bits of exponent, 3 of mantissa), and a scale per KV head.

    stored = e4m3(min(max(x / scale, -448), 448)),     x' = stored * scale

448 is the largest number of the format, which has no infinity: larger numbers would become NaN. NaN stays
NaN. Rounded to nearest, ties to even: at most 1/16 of the value off where x / scale is at least 2 ** -6, at
most scale * 2 ** -10 below. Scales: [K] float32 for keys and for values; one for all heads is the same number
K times. Keys are quantized as they are compared with, after norm and rotation.

Half the bytes of bfloat16, in memory and for attention to read. Products stay in the queries' dtype: a
value is converted when it is in registers, where e4m3 is exact in all of float16, bfloat16 and float32, and
the scale goes into the scale of the scores, and of the result. Converting in hardware takes sm_89 or later.

Source: OCP 8-bit Floating Point Specification (OFP8), 2023. Written by kernels.triton.attention.store_kv,
read by kernels.triton.attention.paged_attention.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.ops.attention.e4m3 import LARGEST as _LARGEST

LARGEST = tl.constexpr(_LARGEST)


@dataclass(frozen=True)
class KVScales:
    """The scales of one layer."""

    key: torch.Tensor  # [K] float32
    value: torch.Tensor  # [K] float32


def unit_scales(num_kv: int, device: torch.device) -> KVScales:
    """Returns scales of 1 for so many heads, which change no bit: those of kernels.ops.attention.e4m3."""
    ones = torch.ones(num_kv, dtype=torch.float32, device=device)
    return KVScales(ones, ones)


@triton.jit
def quantized(x, scale):
    """Quantizes x [N, D] float32 by scale [N] to e4m3. Comparisons with NaN are false, so NaN passes
    through."""
    scaled = tl.div_rn(x, scale[:, None] + tl.zeros_like(x))
    scaled = tl.where(scaled > LARGEST, LARGEST, scaled)
    scaled = tl.where(scaled < -LARGEST, -LARGEST, scaled)
    return scaled.to(tl.float8e4nv)
