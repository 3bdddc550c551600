"""log(1 + e ** x) of 16 values at once.

max(x, 0) + log(1 + u), u = e ** -abs(x), and log(1 + u) = 2 * (s + s ** 3 / 3 + s ** 5 / 5 + ...), where
s = u / (2 + u) is at most 1 / 3.
"""

from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.isa.exp import precise_exp
from kernels.cpu.isa.simd import fma, select


def softplus(x: f32x16) -> f32x16:
    """To some roundings of float32."""
    zero = f32x16(0.0)
    size = select(x < zero, x, x * -1.0)
    u = precise_exp(size)
    s = u / (u + 2.0)
    square = s * s
    series = fma(square, f32x16(1 / 15), f32x16(1 / 13))
    series = fma(square, series, f32x16(1 / 11))
    series = fma(square, series, f32x16(1 / 9))
    series = fma(square, series, f32x16(1 / 7))
    series = fma(square, series, f32x16(1 / 5))
    series = fma(square, series, f32x16(1 / 3))
    series = fma(square, series, f32x16(1.0))
    return select(x < zero, zero, x) + s * series * 2.0
