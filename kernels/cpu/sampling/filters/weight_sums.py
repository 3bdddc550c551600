"""Sums of weights over a whole vocabulary, a chunk of 64 logits at a time, in vectors.

Here weights are powers of two of y = (x - largest) * rate, where rate is log2(e) / T: within ABOUT of
exp((x - largest) / T), which is all that sums need which are compared with a margin. It takes a third of the
time of weigh(), and adds up eight weights at once instead of one.
"""

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from kernels.cpu.compiler.language import unroll
from kernels.cpu.compiler.vectors import f32x8, f32x16, f64x8, i32x16
from kernels.cpu.isa.doubles import (
    WIDE,
    as_f64,
    bits_of_f64,
    load_f32x8,
    store_f64x8,
    to_f64,
)
from kernels.cpu.isa.lanes import bits_of_mask, constant_i32, smaller, truncated
from kernels.cpu.isa.simd import fma, load_f32, select, store_i32, sum_in_order
from kernels.cpu.isa.vectors import LANES
from kernels.cpu.sampling.vector_loops import CHUNK, LOWEST

BUCKETS = 256
"""That scores go into. Each has a sum for each lane of a vector: neighbours that fall into one bucket, as a
whole vocabulary of equals does, need not wait for one another."""

ABOUT = 2e-12
"""What the polynomial is off, as a share of a weight. Rounding y makes 1e-16 |y|, which is more for weights
that are too small to matter. Adding up 152,000 weights makes 2e-11: more terms would gain nothing."""
*_SERIES, _LAST_TERM = Chebyshev.interpolate(np.exp2, 8, (-0.5, 0.5)).convert(kind=Polynomial).coef.tolist()
_FROM_HIGHEST = tuple(reversed(_SERIES))
_LEAST = -1000.0
"""2 ** y of anything below is nothing, and a number still."""
_ROUND = 1.5 * 2.0**52
"""Added to a smaller number, it leaves the nearest integer in the low bits."""
_sums_of_lanes = constant_i32(8 * (lane % WIDE) for lane in range(LANES))
"""Bytes from a bucket's first sum to that of each lane."""


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
