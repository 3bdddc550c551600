"""Sums of weights over a whole vocabulary, a chunk of 64 logits at a time, in vectors.

Here weights are powers of two of y = (x - largest) * rate, where rate is log2(e) / T: within ABOUT of
exp((x - largest) / T), which is all that sums need which are compared with a margin. It takes a third of the
time of weigh(), and adds up eight weights at once instead of one.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numpy.polynomial import Chebyshev, Polynomial

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa.vectors import (
    F32,
    F32S,
    I32,
    I32S,
    I64,
    LANES,
    broadcast,
    call,
    load,
    repeat,
    store,
    word,
)
from kernels.cpu.sampling.vector_loops import CHUNK, F64, F64S, I64S, LOWEST, WIDE, every, fma, repeated

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


def _about(builder: Any, x: Any, largest: Any, rate: Any) -> tuple[Any, Any]:
    """The weights of eight float32, and y; F64S, as are largest and rate."""
    y = builder.fmul(builder.fsub(builder.fpext(x, F64S), largest), rate)
    y = builder.select(builder.fcmp_ordered(">", y, every(_LEAST)), y, every(_LEAST))
    rounded = builder.fadd(y, every(_ROUND))
    part = builder.fsub(y, builder.fsub(rounded, every(_ROUND)))
    power = every(_SERIES[-1])
    for term in _SERIES[-2::-1]:
        power = fma(builder, power, part, every(term))
    exponent = builder.shl(builder.bitcast(rounded, I64S), ir.Constant(I64S, [52] * WIDE))
    return builder.bitcast(builder.add(builder.bitcast(power, I64S), exponent), F64S), y


def _sum(builder: Any, values: Any) -> Any:
    return call(builder, "llvm.vector.reduce.fadd.v8f64", F64, ir.Constant(F64, 0.0), values)


def _eight(builder: Any, x: Any, v: Any) -> Any:
    """Float32 values 8 v .. 8 v + 7 at an address."""
    return load(builder, builder.add(x, builder.mul(v, word(4 * WIDE))), _NARROW)


def _narrow(builder: Any, value: Any) -> Any:
    """A float32 in eight lanes."""
    return builder.fptrunc(repeated(builder, builder.fpext(value, F64)), _NARROW)


@intrinsic(types.float64(types.int64, types.int64, types.float32, types.float64, types.float64))
def chunk_mass(builder: Any, scores: Any, x: Any, limit: Any, largest: Any, rate: Any) -> Any:
    """The sum of the weights of a chunk's tokens whose scores reach a limit. scores, x: addresses of [64]
    float32."""
    limits = _narrow(builder, limit)
    largest, rate = repeated(builder, largest), repeated(builder, rate)

    def add(v: Any, sums: list[Any]) -> list[Any]:
        weights, _ = _about(builder, _eight(builder, x, v), largest, rate)
        kept = builder.fcmp_ordered(">=", _eight(builder, scores, v), limits)
        return [builder.fadd(sums[0], builder.select(kept, weights, every(0.0)))]

    return _sum(builder, repeat(builder, word(CHUNK // WIDE), [every(0.0)], add)[0])


@intrinsic(types.void(types.int64, types.float32, types.float64, types.float64, types.int64))
def chunk_entropy(builder: Any, x: Any, limit: Any, largest: Any, rate: Any, out: Any) -> None:
    """Of a chunk's weights whose logits reach a limit: out[0]: their sum, out[1]: that of the weights times
    their binary logarithms; float64."""
    limits = _narrow(builder, limit)
    largest, rate = repeated(builder, largest), repeated(builder, rate)

    def add(v: Any, sums: list[Any]) -> list[Any]:
        part = _eight(builder, x, v)
        weights, y = _about(builder, part, largest, rate)
        weights = builder.select(builder.fcmp_ordered(">=", part, limits), weights, every(0.0))
        return [builder.fadd(sums[0], weights), fma(builder, weights, y, sums[1])]

    for place, sums in enumerate(repeat(builder, word(CHUNK // WIDE), [every(0.0)] * 2, add)):
        store(builder, _sum(builder, sums), builder.add(out, word(8 * place)))


@intrinsic(types.void(types.int64, types.float32, types.float64, types.float64, types.float64, types.int64))
def chunk_distances(
    builder: Any, x: Any, limit: Any, largest: Any, per_degree: Any, mean: Any, out: Any
) -> None:
    """-| (x - largest) * per_degree - mean | of a chunk's logits that reach a limit, -inf of others. x, out:
    addresses of [64] float32."""
    limits = _narrow(builder, limit)
    largest, per_degree, mean = (repeated(builder, value) for value in (largest, per_degree, mean))

    def write(v: Any, nothing: list[Any]) -> list[Any]:
        part = _eight(builder, x, v)
        logs = builder.fmul(builder.fsub(builder.fpext(part, F64S), largest), per_degree)
        distance = call(builder, "llvm.fabs.v8f64", F64S, builder.fsub(logs, mean))
        score = builder.fneg(builder.fptrunc(distance, _NARROW))
        nowhere = ir.Constant(_NARROW, [-math.inf] * WIDE)
        score = builder.select(builder.fcmp_ordered(">=", part, limits), score, nowhere)
        store(builder, score, builder.add(out, builder.mul(v, word(4 * WIDE))))
        return nothing

    repeat(builder, word(CHUNK // WIDE), [], write)


def _bucket(builder: Any, score: Any, top: Any, per_score: Any) -> Any:
    """Of float32 values, as I32S: 0 for the highest; the last one goes down to -inf."""
    place = builder.fmul(builder.fsub(top, score), per_score)
    last = ir.Constant(F32S, [float(BUCKETS - 1)] * LANES)
    return builder.fptosi(builder.select(builder.fcmp_ordered("<", place, last), place, last), I32S)


@intrinsic(types.void(types.int64, types.float32, types.float32, types.int64))
def chunk_places(builder: Any, scores: Any, top: Any, per_score: Any, out: Any) -> None:
    """Where in the buckets the weights of a chunk's tokens are to be added: bytes from their beginning.
    scores: address of [64] float32; out: of [64] int32. top: the highest score, or a higher one. per_score:
    buckets for a difference of 1."""
    top, per_score = broadcast(builder, top), broadcast(builder, per_score)
    lanes = ir.Constant(I32S, [8 * (lane % WIDE) for lane in range(LANES)])
    for i in range(0, CHUNK, LANES):
        part = load(builder, builder.add(scores, word(4 * i)), F32S)
        bucket = builder.mul(_bucket(builder, part, top, per_score), ir.Constant(I32S, [8 * WIDE] * LANES))
        store(builder, builder.add(bucket, lanes), builder.add(out, word(4 * i)))


@intrinsic(types.float64(types.int64, types.int64, types.float64, types.float64, types.int64))
def chunk_weights(builder: Any, scores: Any, x: Any, largest: Any, rate: Any, out: Any) -> Any:
    """Notes the weights of a chunk's tokens, 0 of those with the score -inf, and returns their sum. scores,
    x: addresses of [64] float32; out: of [64] float64."""
    largest, rate = repeated(builder, largest), repeated(builder, rate)
    lowest = ir.Constant(_NARROW, [LOWEST] * WIDE)

    def weigh(v: Any, total: list[Any]) -> list[Any]:
        weights, _ = _about(builder, _eight(builder, x, v), largest, rate)
        kept = builder.fcmp_ordered(">=", _eight(builder, scores, v), lowest)
        weights = builder.select(kept, weights, every(0.0))
        store(builder, weights, builder.add(out, builder.mul(v, word(8 * WIDE))))
        return [builder.fadd(total[0], weights)]

    return _sum(builder, repeat(builder, word(CHUNK // WIDE), [every(0.0)], weigh)[0])


@intrinsic(types.int64(types.int64, types.float32, types.float32, types.int64))
def in_bucket(builder: Any, scores: Any, top: Any, per_score: Any, bucket: Any) -> Any:
    """Which tokens of a chunk are in a bucket: bit i is that of token i."""
    top, per_score = broadcast(builder, top), broadcast(builder, per_score)
    wanted, bits = broadcast(builder, builder.trunc(bucket, I32)), word(0)
    for i in range(0, CHUNK, LANES):
        part = load(builder, builder.add(scores, word(4 * i)), F32S)
        same = builder.icmp_signed("==", _bucket(builder, part, top, per_score), wanted)
        lanes = builder.bitcast(same, ir.IntType(LANES))
        bits = builder.or_(bits, builder.shl(builder.zext(lanes, I64), word(i)))
    return bits
