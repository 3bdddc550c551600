"""What the sampling kernels do with vectors: chunks of 64 logits, weights in float64, sums above a limit."""

import math

from kernels.cpu.compiler.language import float32, unroll
from kernels.cpu.compiler.vectors import f64x8, i64x8
from kernels.cpu.isa.doubles import (
    WIDE,
    as_f64,
    load_f32x8,
    load_f64x8,
    store_f64x8,
    to_f64,
    truncated_i64,
)
from kernels.cpu.isa.lanes import any_lane, bits_of_mask, larger, largest_lane
from kernels.cpu.isa.simd import fma, load_f32, rint, select, sum_in_order
from kernels.cpu.isa.vectors import LANES, write_f32

NO_TOKEN = -1
"""Of a row whose largest logit is not finite."""
CHUNK = 64
"""Logits whose largest is noted. 50 of 152,000 tokens are then found by looking at 2,375 numbers and at 50
chunks or so; chunks of 32 or 128 take as long."""

LOWEST = -3.4028234663852886e38
"""The lowest finite float32: at least that is whatever is not masked."""

# exp(s) for |s| <= log(2) / 2 as 1 + s + s^2 / 2 + s^3 (c[0] + c[1] s + ...): a minimax polynomial. Source:
# SLEEF (Shibata and Petrogalli, IEEE TPDS 2020), xexp of its double precision; so are the halves of log(2).
_PAIRS = (
    (0.166666666666666851703837, 0.0416666666666665047591422),
    (0.00833333333331652721664984, 0.00138888888889774492207962),
    (0.000198412698960509205564975, 2.4801587159235472998791e-05),
    (2.75572362911928827629423e-06, 2.75573911234900471893338e-07),
    (2.51112930892876518610661e-08, 2.08860621107283687536341e-09),
)
_LOG2_HIGH, _LOG2_LOW = 0.69314718055966295651160180568695068359375, 0.28235290563031577122588448175013436e-12
_LOG2_E = math.log2(math.e)
_FIRST_TERMS = 0.5, 1.0, 1.0
_LEAST = -1000.0
"""exp() of anything below is 0, and whole powers of two of it still fit."""
_NAN = math.nan


def _power_of_two(exponent: i64x8) -> f64x8:
    """2 ** n, n in -1022 .. 1023."""
    return as_f64((exponent + 1023) << 52)


def exp(x: f64x8) -> f64x8:
    """e ** x from -inf to 0: within 1 unit in the last place; exp(0) is 1."""
    x = select(x > _LEAST, x, f64x8(_LEAST))
    whole = rint(x * _LOG2_E)
    s = fma(whole, f64x8(-_LOG2_HIGH), x)
    s = fma(whole, f64x8(-_LOG2_LOW), s)
    # Pairs of terms, then pairs of pairs: a chain of eleven products would be waited for.
    s2 = s * s
    s4 = s2 * s2
    pairs = [fma(f64x8(high), s, f64x8(low)) for low, high in unroll(_PAIRS)]
    fours = [fma(pairs[i + 1], s2, pairs[i]) for i in unroll(range(0, 4, 2))]
    power = fma(s4 * s4, pairs[4], fma(fours[1], s4, fours[0]))
    for term in unroll(_FIRST_TERMS):
        power = fma(power, s, f64x8(term))
    # In two steps, since 2 ** -1074 is no exponent.
    exponent = truncated_i64(whole)
    half = exponent >> 1
    return power * _power_of_two(half) * _power_of_two(exponent - half)


def chunk_largest(x: int, chunks: int, out: int) -> None:
    """The largest logit of each chunk, NaN where one is. x: address of [64 * chunks] float32; out: of
    [chunks]."""
    for chunk in range(chunks):
        at = x + 4 * CHUNK * chunk
        best = load_f32(at)
        broken = best != best
        for i in unroll(range(LANES, CHUNK, LANES)):
            part = load_f32(at + 4 * i)
            best = larger(part, best)
            broken |= part != part
        largest = largest_lane(best)
        write_f32(out + 4 * chunk, float32(_NAN) if any_lane(broken) else largest)


def at_least(x: int, limit: float) -> int:
    """Which logits of a chunk reach a limit: bit i is that of logit i."""
    bits = 0
    for i in unroll(range(0, CHUNK, LANES)):
        bits |= bits_of_mask(load_f32(x + 4 * i) >= limit) << i
    return bits


def weigh(x: int, largest: float, temperature: float, out: int, vectors: int) -> None:
    """kernels.ops.logits.temperature: exp((x - largest) / temperature). x: address of [8 * vectors] float32;
    out: of as many float64."""
    for v in range(vectors):
        below = to_f64(load_f32x8(x + 4 * WIDE * v)) - largest
        store_f64x8(out + 8 * WIDE * v, exp(below / temperature))


def masses(x: int, weights: int, vectors: int, limit: float) -> tuple[float, float]:
    """The sum of the weights whose x is above a limit, and of those at least as high. x: address of
    [8 * vectors] float32; weights: of as many float64. Eight sums each, added at the end."""
    above, reached = f64x8(0.0), f64x8(0.0)
    for v in range(vectors):
        part, weight = to_f64(load_f32x8(x + 4 * WIDE * v)), load_f64x8(weights + 8 * WIDE * v)
        above += select(part > limit, weight, f64x8(0.0))
        reached += select(part >= limit, weight, f64x8(0.0))
    return sum_in_order(above), sum_in_order(reached)
