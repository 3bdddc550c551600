"""Sums of weights over a whole vocabulary, a chunk of 64 logits at a time, in vectors.

Here weights are powers of two of y = (x - largest) * rate, where rate is log2(e) / T: within ABOUT of
exp((x - largest) / T), which is all that sums need which are compared with a margin. It takes a third of the
time of weigh(), and adds up eight weights at once instead of one.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numpy.polynomial import Chebyshev, Polynomial

from kernels.cpu import types
from kernels.cpu.language import intrinsic
from kernels.cpu.sampling_vectors import CHUNK, F64, F64S, I64S, WIDE, every, fma, repeated
from kernels.cpu.vectors import F32, F32S, I32, I32S, I64, LANES, broadcast, call, load, repeat, store, word

BUCKETS = 256
"""That scores go into. Each has a sum for each lane of a vector: neighbours that fall into one bucket, as a
whole vocabulary of equals does, need not wait for one another."""

ABOUT = 2e-12
"""What the polynomial is off, as a share of a weight. Rounding y makes 1e-16 |y|, which is more for weights
that are too small to matter. Adding up 152,000 weights makes 2e-11: more terms would gain nothing."""
_SERIES = Chebyshev.interpolate(np.exp2, 8, (-0.5, 0.5)).convert(kind=Polynomial).coef.tolist()
_LEAST = -1000.0
"""2 ** y of anything below is nothing, and a number still."""
_ROUND = 1.5 * 2.0**52
"""Added to a smaller number, it leaves the nearest integer in the low bits."""
_NARROW = ir.VectorType(F32, WIDE)


def _about(builder: Any, x: Any, largest: Any, rate: Any) -> Any:
    """The weights of eight float32, as F64S. largest, rate: F64S."""
    y = builder.fmul(builder.fsub(builder.fpext(x, F64S), largest), rate)
    y = builder.select(builder.fcmp_ordered(">", y, every(_LEAST)), y, every(_LEAST))
    rounded = builder.fadd(y, every(_ROUND))
    part = builder.fsub(y, builder.fsub(rounded, every(_ROUND)))
    power = every(_SERIES[-1])
    for term in _SERIES[-2::-1]:
        power = fma(builder, power, part, every(term))
    exponent = builder.shl(builder.bitcast(rounded, I64S), ir.Constant(I64S, [52] * WIDE))
    return builder.bitcast(builder.add(builder.bitcast(power, I64S), exponent), F64S)


def _sum(builder: Any, values: Any) -> Any:
    return call(builder, "llvm.vector.reduce.fadd.v8f64", F64, ir.Constant(F64, 0.0), values)


@intrinsic
def chunk_mass(typing: Any, x: Any, limit: Any, largest: Any, rate: Any) -> Any:
    """The sum of the weights of a chunk's logits that reach a limit. x: address of [64] float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, limit, largest, rate = args
        limits = builder.fptrunc(repeated(builder, builder.fpext(limit, F64)), _NARROW)
        largest, rate = repeated(builder, largest), repeated(builder, rate)

        def add(v: Any, sums: list[Any]) -> list[Any]:
            part = load(builder, builder.add(x, builder.mul(v, word(4 * WIDE))), _NARROW)
            weights = _about(builder, part, largest, rate)
            kept = builder.select(builder.fcmp_ordered(">=", part, limits), weights, every(0.0))
            return [builder.fadd(sums[0], kept)]

        return _sum(builder, repeat(builder, word(CHUNK // WIDE), [every(0.0)], add)[0])

    return types.float64(types.int64, types.float32, types.float64, types.float64), generate


def _bucket(builder: Any, x: Any, largest: Any, per_score: Any) -> Any:
    """Of float32 values, as I32S: 0 for the largest; the last one goes down to -inf."""
    place = builder.fmul(builder.fsub(largest, x), per_score)
    last = ir.Constant(F32S, [float(BUCKETS - 1)] * LANES)
    return builder.fptosi(builder.select(builder.fcmp_ordered("<", place, last), place, last), I32S)


@intrinsic
def chunk_buckets(
    typing: Any, x: Any, largest: Any, rate: Any, per_score: Any, weights: Any, sums: Any
) -> Any:
    """Notes the weights of a chunk's logits, and where in the buckets each is to be added: bytes from their
    beginning. Returns the sum. weights, sums: addresses of [64] float64 and int32. per_score: float32,
    buckets for a difference of 1 between two scores."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, largest, rate, per_score, weights, sums = args
        high = broadcast(builder, builder.fptrunc(largest, F32))
        per_score = broadcast(builder, per_score)
        lanes = ir.Constant(I32S, [8 * (lane % WIDE) for lane in range(LANES)])
        for i in range(0, CHUNK, LANES):
            bucket = _bucket(builder, load(builder, builder.add(x, word(4 * i)), F32S), high, per_score)
            place = builder.add(builder.mul(bucket, ir.Constant(I32S, [8 * WIDE] * LANES)), lanes)
            store(builder, place, builder.add(sums, word(4 * i)))
        largest, rate = repeated(builder, largest), repeated(builder, rate)

        def weigh(v: Any, total: list[Any]) -> list[Any]:
            part = load(builder, builder.add(x, builder.mul(v, word(4 * WIDE))), _NARROW)
            weight = _about(builder, part, largest, rate)
            store(builder, weight, builder.add(weights, builder.mul(v, word(8 * WIDE))))
            return [builder.fadd(total[0], weight)]

        return _sum(builder, repeat(builder, word(CHUNK // WIDE), [every(0.0)], weigh)[0])

    arguments = types.int64, types.float64, types.float64, types.float32, types.int64, types.int64
    return types.float64(*arguments), generate


@intrinsic
def in_bucket(typing: Any, x: Any, largest: Any, per_score: Any, bucket: Any) -> Any:
    """Which logits of a chunk are in a bucket: bit i is that of logit i."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, largest, per_score, bucket = args
        largest, per_score = broadcast(builder, largest), broadcast(builder, per_score)
        wanted, bits = broadcast(builder, builder.trunc(bucket, I32)), word(0)
        for i in range(0, CHUNK, LANES):
            part = load(builder, builder.add(x, word(4 * i)), F32S)
            same = builder.icmp_signed("==", _bucket(builder, part, largest, per_score), wanted)
            lanes = builder.bitcast(same, ir.IntType(LANES))
            bits = builder.or_(bits, builder.shl(builder.zext(lanes, I64), word(i)))
        return bits

    return types.int64(types.int64, types.float32, types.float32, types.int64), generate
