"""e ** x of 16 values at once: as exact as float32, and as exact as a result in bfloat16 needs it.

The second one takes fewer instructions. Of (x * log2(e) + 127) * 2 ** 23, made a whole number, the bits are
those of a float32:

    e ** x  = 2 ** (i - 127) * f(g)     i: its exponent; g: its mantissa as a number from 1 to 2
    f       a polynomial, 2 ** (g - 1) to 1.0e-4 of it: a twentieth of bfloat16's rounding

No step of this takes two cycles, as it does to scale by 2 ** n.

Of it are made, to some roundings of float32:

    softplus  log(1 + e ** x) = max(x, 0) + log(1 + u), u = e ** -abs(x), and log(1 + u) is
              2 * (s + s ** 3 / 3 + s ** 5 / 5 + ...), where s = u / (2 + u) is at most 1 / 3
    capped    cap * tanh(x / cap), tanh(z) = 1 - 2 / (1 + e ** (2 z)) to some 1e-7
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numpy.polynomial import Chebyshev, Polynomial

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import lowered_by
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.simd import fma, select
from kernels.cpu.isa.vectors import F32S, I32S, LANES, call, splat

EXPONENT_UNIT = 2.0**23
"""What a float32's exponent counts by, as an integer."""
BIAS = 127
"""The exponent of 1, as a float32 has it."""
_SERIES = (
    Chebyshev.interpolate(lambda g: np.exp2(g - 1), 3, (1.0, 2.0)).convert(kind=Polynomial).coef.tolist()
)


def exp(builder: Any, x: Any) -> Any:
    """e ** x for F32S up to 88, to 3e-7 of it near 0; 0 for -inf.

    2 ** (n + f), n whole and f in -1/2 .. 1/2: the series of 2 ** f, then a shift of the exponent. With six
    powers of f it is as exact as float32."""
    exponent = builder.fmul(x, ir.Constant(F32S, [math.log2(math.e)] * LANES))
    least = ir.Constant(F32S, [-160.0] * LANES)  # 2 ** -160 is 0; -inf would make f a NaN
    exponent = builder.select(builder.fcmp_ordered("<", exponent, least), least, exponent)
    whole = call(builder, "llvm.rint.v16f32", F32S, exponent)
    part = builder.fsub(exponent, whole)
    *others, power = (ir.Constant(F32S, [math.log(2) ** k / math.factorial(k)] * LANES) for k in range(7))
    for factor in reversed(others):
        power = call(builder, "llvm.fma.v16f32", F32S, power, part, factor)
    return OPERATIONS.scale(builder, power, whole)


@lowered_by(exp, types.f32x16(types.f32x16))
def precise_exp(x: f32x16) -> f32x16:
    """e ** x, see exp()."""
    with np.errstate(all="ignore"):
        return f32x16(np.exp(x.lanes.astype(np.float64)))


def rough_power(builder: Any, bits: Any) -> tuple[Any, Any]:
    """Two factors of e ** x, of the number that the module's docstring makes of x: f(g), and the power of 2.
    That is 0 where the number is below 2 ** 23, NaN or 2 ** 31 and more; of 255 * 2 ** 23 it is infinite."""
    nothing = splat(I32S, 0)
    whole = OPERATIONS.round_to_int(builder, bits)  # NaN and such: the least
    whole = builder.select(builder.icmp_signed(">", whole, nothing), whole, nothing)
    power = builder.bitcast(builder.and_(whole, splat(I32S, 0x7F800000)), F32S)
    mantissa = builder.or_(builder.and_(whole, splat(I32S, 0x7FFFFF)), splat(I32S, 0x3F800000))
    mantissa = builder.bitcast(mantissa, F32S)
    *others, series = (ir.Constant(F32S, [factor] * LANES) for factor in _SERIES)
    for factor in reversed(others):
        series = call(builder, "llvm.fma.v16f32", F32S, series, mantissa, factor)
    return series, power


@lowered_by(lambda b, bits: rough_power(b, bits)[0], types.f32x16(types.f32x16))
def rough_fraction(bits: f32x16) -> f32x16:
    """The first of rough_power()'s factors."""
    mantissa = f32x16((_rounded(bits) & 0x7FFFFF | 0x3F800000).view(np.float32))
    *others, series = _SERIES
    result = f32x16(series)
    for factor in reversed(others):
        result = fma(result, mantissa, f32x16(factor))
    return result


@lowered_by(lambda b, bits: rough_power(b, bits)[1], types.f32x16(types.f32x16))
def rough_exponent(bits: f32x16) -> f32x16:
    """The second of rough_power()'s factors."""
    return f32x16((_rounded(bits) & 0x7F800000).view(np.float32))


def _rounded(bits: f32x16) -> Any:
    """[16] int32: 0 for what has none, or is negative."""
    fits = (bits.lanes > 0) & (bits.lanes < 2.0**31)
    return np.rint(np.where(fits, bits.lanes, 0)).astype(np.int32)


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


_LARGEST_TANH = 40.0
"""Where tanh is 1 in float32 long since, and e ** x is finite."""


def capped(x: f32x16, cap: float) -> f32x16:
    """cap * tanh(x / cap). -inf and inf become -cap and cap; of NaN the result is cap."""
    doubled = x * (2.0 / cap)
    doubled = select(doubled < f32x16(_LARGEST_TANH), doubled, f32x16(_LARGEST_TANH))
    doubled = select(doubled > f32x16(-_LARGEST_TANH), doubled, f32x16(-_LARGEST_TANH))
    return (f32x16(1.0) - f32x16(2.0) / (precise_exp(doubled) + 1.0)) * cap
