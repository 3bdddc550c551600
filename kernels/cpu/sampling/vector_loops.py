"""What the sampling kernels do with vectors: chunks of 64 logits, weights in float64, sums above a limit.

Sums over a whole vocabulary have weights that are powers of two of y = (x - largest) * rate, where rate is
log2(e) / T: within ABOUT of exp((x - largest) / T), which is all that sums need which are compared with a
margin. It takes a third of the time of weigh(), and adds up eight weights at once instead of one.
"""

import math
from math import inf

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from kernels.cpu.compiler.language import Static, float32, unroll
from kernels.cpu.compiler.vectors import f32x8, f32x16, f64x8, i32x16, i64x8
from kernels.cpu.isa.doubles import (
    WIDE,
    as_f64,
    bits_of_f64,
    load_f32x8,
    load_f64x8,
    store_f64x8,
    to_f64,
    truncated_i64,
)
from kernels.cpu.isa.lanes import (
    any_lane,
    bits_of_mask,
    constant_i32,
    larger,
    smaller,
    truncated,
)
from kernels.cpu.isa.shuffles import lane_of, reduce_rows
from kernels.cpu.isa.simd import fma, load_f32, rint, select, store_i32, sum_in_order
from kernels.cpu.isa.vectors import LANES, read_f32, write_f32

NO_TOKEN = -1
"""Of a row whose largest logit is not finite."""
CHUNK = 64
"""Logits whose largest is noted. 50 of 152,000 tokens are then found by looking at 2,375 numbers and at 50
chunks or so; chunks of 32 or 128 take as long."""
TOGETHER = 8
"""Chunks whose lanes are reduced together: in a third of the time."""

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
"""exp() and 2 ** of anything below is 0, and whole powers of two of it still fit."""
_NAN = math.nan

BUCKETS = 256
"""That scores go into. Each has a sum for each lane of a vector: neighbours that fall into one bucket, as a
whole vocabulary of equals does, need not wait for one another."""

ABOUT = 2e-12
"""What the polynomial is off, as a share of a weight. Rounding y makes 1e-16 |y|, which is more for weights
that are too small to matter. Adding up 152,000 weights makes 2e-11: more terms would gain nothing."""
*_SERIES, _LAST_TERM = Chebyshev.interpolate(np.exp2, 8, (-0.5, 0.5)).convert(kind=Polynomial).coef.tolist()
_FROM_HIGHEST = tuple(reversed(_SERIES))
_ROUND = 1.5 * 2.0**52
"""Added to a smaller number, it leaves the nearest integer in the low bits."""
_sums_of_lanes = constant_i32(8 * (lane % WIDE) for lane in range(LANES))
"""Bytes from a bucket's first sum to that of each lane."""


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


def _largest_of(count: Static[int], x: int, out: int) -> None:
    """Writes the largest logit of each of `count` chunks, at most 8; NaN of all of them where one is."""
    best = [load_f32(x + 4 * CHUNK * chunk) for chunk in unroll(range(count))]
    broken = best[0] != best[0]
    for chunk in unroll(range(count)):
        for i in unroll(range(0, CHUNK, LANES)):
            part = load_f32(x + 4 * (CHUNK * chunk + i))
            best[chunk] = larger(part, best[chunk])
            broken |= part != part
    largest = reduce_rows(larger, best)
    if any_lane(broken):
        largest = f32x16(_NAN)
    for chunk in unroll(range(count)):
        write_f32(out + 4 * chunk, lane_of(largest, chunk))


def chunk_largest(x: int, size: int, out: int) -> None:
    """Writes the largest logit of each chunk, of which the last one may not be whole; NaN, of its neighbours
    too, where one is. x: address of [size] float32; out: of [chunks]."""
    whole = size // CHUNK
    together = whole // TOGETHER * TOGETHER
    for chunk in range(0, together, TOGETHER):
        _largest_of(TOGETHER, x + 4 * CHUNK * chunk, out + 4 * chunk)
    for chunk in range(together, whole):
        _largest_of(1, x + 4 * CHUNK * chunk, out + 4 * chunk)
    if CHUNK * whole < size:
        best = float32(-inf)
        for i in range(CHUNK * whole, size):
            score = read_f32(x + 4 * i)
            if score > best or score != score:
                best = score
        write_f32(out + 4 * whole, best)


def at_least(x: int, limit: float) -> int:
    """Which logits of a chunk reach a limit: bit i is that of logit i."""
    bits = 0
    for i in unroll(range(0, CHUNK, LANES)):
        bits |= bits_of_mask(load_f32(x + 4 * i) >= limit) << i
    return bits


def weigh(x: int, largest: float, temperature: float, out: int, vectors: int) -> None:
    """kernels.ops.sampling.filters.temperature_weights: exp((x - largest) / temperature). x: address of
    [8 * vectors] float32; out: of as many float64."""
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


def _about(x: f32x8, largest: float, rate: float) -> f64x8:
    """The weights of eight logits."""
    y = (to_f64(x) - largest) * rate
    y = select(y > _LEAST, y, f64x8(_LEAST))
    rounded = y + _ROUND
    part = y - (rounded - _ROUND)
    power = f64x8(_LAST_TERM)
    for term in unroll(_FROM_HIGHEST):
        power = fma(power, part, f64x8(term))
    return as_f64(bits_of_f64(power) + (bits_of_f64(rounded) << 52))


def chunk_mass(x: int, limit: float, largest: float, rate: float) -> float:
    """The sum of the weights of a chunk's logits that reach a limit. x: address of [64] float32."""
    total = f64x8(0.0)
    for i in range(0, CHUNK, WIDE):
        logits = load_f32x8(x + 4 * i)
        total += select(logits >= limit, _about(logits, largest, rate), f64x8(0.0))
    return sum_in_order(total)


def _bucket(score: f32x16, top: float, per_score: float) -> i32x16:
    """0 for the highest; the last one goes down to -inf."""
    return truncated(smaller((f32x16(top) - score) * per_score, f32x16(BUCKETS - 1)))


def chunk_places(x: int, top: float, per_score: float, out: int) -> None:
    """Where in the buckets the weights of a chunk's tokens are to be added: bytes from their beginning.
    x: address of [64] float32; out: of [64] int32. top: the highest logit. per_score: buckets for a
    difference of 1."""
    for i in unroll(range(0, CHUNK, LANES)):
        bucket = _bucket(load_f32(x + 4 * i), top, per_score)
        store_i32(out + 4 * i, bucket * (8 * WIDE) + _sums_of_lanes())


def chunk_weights(x: int, largest: float, rate: float, out: int) -> float:
    """Writes the weights of a chunk's logits, 0 of -inf, and returns their sum. x: address of [64] float32;
    out: of [64] float64."""
    total = f64x8(0.0)
    for i in range(0, CHUNK, WIDE):
        logits = load_f32x8(x + 4 * i)
        weights = select(logits >= LOWEST, _about(logits, largest, rate), f64x8(0.0))
        store_f64x8(out + 8 * i, weights)
        total += weights
    return sum_in_order(total)


def in_bucket(x: int, top: float, per_score: float, bucket: int) -> int:
    """Which tokens of a chunk are in a bucket: bit i is that of token i."""
    bits = 0
    for i in unroll(range(0, CHUNK, LANES)):
        same = _bucket(load_f32(x + 4 * i), top, per_score) == bucket
        bits |= bits_of_mask(same) << i
    return bits
