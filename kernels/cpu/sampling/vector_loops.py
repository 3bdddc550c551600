"""What the sampling kernels do with vectors: chunks of 64 logits, weights in float64, sums above a limit.

LLVM's generic vectors alone: these run on any CPU that LLVM compiles for, in as many registers as a
vector takes there.
"""

import ctypes
import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa.vectors import (
    F32,
    F32S,
    I32,
    I64,
    LANES,
    broadcast,
    call,
    load,
    make_reader,
    make_writer,
    repeat,
    store,
    word,
)

NO_TOKEN = -1
"""Of a row whose largest logit is not finite."""
CHUNK = 64
"""Logits whose largest is noted. 50 of 152,000 tokens are then found by looking at 2,375 numbers and at 50
chunks or so; chunks of 32 or 128 take as long."""

F64 = ir.DoubleType()
WIDE = 8
"""float64 values in a vector."""
F64S = ir.VectorType(F64, WIDE)
I64S = ir.VectorType(I64, WIDE)

LOWEST = -3.4028234663852886e38
"""The lowest finite float32: at least that is whatever is not masked."""

# exp(s) for |s| <= log(2) / 2 as 1 + s + s^2 / 2 + s^3 (c[0] + c[1] s + ...): a minimax polynomial. Source:
# SLEEF (Shibata and Petrogalli, IEEE TPDS 2020), xexp of its double precision; so are the halves of log(2).
_SERIES = (
    0.166666666666666851703837,
    0.0416666666666665047591422,
    0.00833333333331652721664984,
    0.00138888888889774492207962,
    0.000198412698960509205564975,
    2.4801587159235472998791e-05,
    2.75572362911928827629423e-06,
    2.75573911234900471893338e-07,
    2.51112930892876518610661e-08,
    2.08860621107283687536341e-09,
)
_LOG2_HIGH, _LOG2_LOW = 0.69314718055966295651160180568695068359375, 0.28235290563031577122588448175013436e-12
_LEAST = -1000.0
"""exp() of anything below is 0, and whole powers of two of it still fit."""


def every(value: float) -> Any:
    """A constant F64S."""
    return ir.Constant(F64S, [value] * WIDE)


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c of F64S."""
    return call(builder, "llvm.fma.v8f64", F64S, a, b, c)


def _power_of_two(builder: Any, exponent: Any) -> Any:
    """2 ** n of I64S in -1022 .. 1023."""
    biased = builder.add(exponent, ir.Constant(I64S, [1023] * WIDE))
    return builder.bitcast(builder.shl(biased, ir.Constant(I64S, [52] * WIDE)), F64S)


def _exp(builder: Any, x: Any) -> Any:
    """e ** x for F64S from -inf to 0: within 1 unit in the last place; exp(0) is 1."""
    x = builder.select(builder.fcmp_ordered(">", x, every(_LEAST)), x, every(_LEAST))
    whole = call(builder, "llvm.rint.v8f64", F64S, builder.fmul(x, every(math.log2(math.e))))
    s = fma(builder, whole, every(-_LOG2_HIGH), x)
    s = fma(builder, whole, every(-_LOG2_LOW), s)
    # Pairs of terms, then pairs of pairs: a chain of eleven products would be waited for.
    s2 = builder.fmul(s, s)
    s4 = builder.fmul(s2, s2)
    c = [every(value) for value in _SERIES]
    pairs = [fma(builder, c[i + 1], s, c[i]) for i in range(0, 10, 2)]
    fours = [fma(builder, pairs[i + 1], s2, pairs[i]) for i in (0, 2)]
    tail = fma(builder, builder.fmul(s4, s4), pairs[4], fma(builder, fours[1], s4, fours[0]))
    power = tail
    for term in (0.5, 1.0, 1.0):
        power = fma(builder, power, s, every(term))
    # In two steps, since 2 ** -1074 is no exponent.
    exponent = builder.sext(builder.fptosi(whole, ir.VectorType(I32, WIDE)), I64S)
    half = builder.ashr(exponent, ir.Constant(I64S, [1] * WIDE))
    power = builder.fmul(power, _power_of_two(builder, half))
    return builder.fmul(power, _power_of_two(builder, builder.sub(exponent, half)))


def repeated(builder: Any, value: Any) -> Any:
    """A double in every lane."""
    nothing = ir.Constant(F64S, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(I32, WIDE), [0] * WIDE))


@intrinsic(types.void(*[types.int64] * 3))
def chunk_largest(builder: Any, x: Any, chunks: Any, out: Any) -> None:
    """The largest logit of each chunk, NaN where one is. x: address of [64 * chunks] float32; out: of
    [chunks]."""

    def find(chunk: Any, nothing: list[Any]) -> list[Any]:
        at = builder.add(x, builder.mul(chunk, word(4 * CHUNK)))
        parts = [load(builder, builder.add(at, word(4 * i)), F32S) for i in range(0, CHUNK, LANES)]
        best, broken = parts[0], builder.fcmp_unordered("uno", parts[0], parts[0])
        for part in parts[1:]:
            best = builder.select(builder.fcmp_ordered(">", part, best), part, best)
            broken = builder.or_(broken, builder.fcmp_unordered("uno", part, part))
        largest = call(builder, "llvm.vector.reduce.fmax.v16f32", F32, best)
        any_broken = call(builder, "llvm.vector.reduce.or.v16i1", ir.IntType(1), broken)
        largest = builder.select(any_broken, ir.Constant(F32, math.nan), largest)
        store(builder, largest, builder.add(out, builder.mul(chunk, word(4))))
        return nothing

    repeat(builder, chunks, [], find)


@intrinsic(types.int64(types.int64, types.float32))
def at_least(builder: Any, x: Any, limit: Any) -> Any:
    """Which logits of a chunk reach a limit: bit i is that of logit i."""
    limits, bits = broadcast(builder, limit), word(0)
    for i in range(0, CHUNK, LANES):
        part = load(builder, builder.add(x, word(4 * i)), F32S)
        lanes = builder.bitcast(builder.fcmp_ordered(">=", part, limits), ir.IntType(LANES))
        bits = builder.or_(bits, builder.shl(builder.zext(lanes, I64), word(i)))
    return bits


@intrinsic(types.int64(types.int64))
def lowest_bit(builder: Any, bits: Any) -> Any:
    """The number of the lowest bit that is set; there must be one."""
    return call(builder, "llvm.cttz.i64", I64, bits, ir.Constant(ir.IntType(1), 1))


@intrinsic(types.void(types.int64, types.float64, types.float64, types.int64, types.int64))
def weigh(builder: Any, x: Any, largest: Any, temperature: Any, out: Any, vectors: Any) -> None:
    """kernels.ops.logits.temperature: exp((x - largest) / temperature). x: address of [8 * vectors] float32;
    out: of as many float64."""
    largest, temperature = repeated(builder, largest), repeated(builder, temperature)

    def write(v: Any, nothing: list[Any]) -> list[Any]:
        narrow = load(builder, builder.add(x, builder.mul(v, word(4 * WIDE))), ir.VectorType(F32, WIDE))
        below = builder.fsub(builder.fpext(narrow, F64S), largest)
        weights = _exp(builder, builder.fdiv(below, temperature))
        store(builder, weights, builder.add(out, builder.mul(v, word(8 * WIDE))))
        return nothing

    repeat(builder, vectors, [], write)


@intrinsic(types.void(*[types.int64] * 3, types.float32, types.int64))
def masses(builder: Any, x: Any, weights: Any, vectors: Any, limit: Any, out: Any) -> None:
    """out[0]: the sum of the weights whose x is above a limit, out[1]: at least as high; float64. x: address
    of [8 * vectors] float32; weights: of as many float64. Eight sums each, added at the end."""
    limits = repeated(builder, builder.fpext(limit, F64))

    def add(v: Any, sums: list[Any]) -> list[Any]:
        narrow = load(builder, builder.add(x, builder.mul(v, word(4 * WIDE))), ir.VectorType(F32, WIDE))
        part = builder.fpext(narrow, F64S)
        weight = load(builder, builder.add(weights, builder.mul(v, word(8 * WIDE))), F64S)
        return [
            builder.fadd(total, builder.select(builder.fcmp_ordered(sign, part, limits), weight, every(0.0)))
            for total, sign in zip(sums, (">", ">="), strict=True)
        ]

    for place, total in enumerate(repeat(builder, vectors, [every(0.0)] * 2, add)):
        added = call(builder, "llvm.vector.reduce.fadd.v8f64", F64, ir.Constant(F64, 0.0), total)
        store(builder, added, builder.add(out, word(8 * place)))


# What lies at an address, and what is to lie there.
read_f64: Callable[[int], float] = make_reader(F64, types.float64, ctypes.c_double)
read_i32: Callable[[int], int] = make_reader(I32, types.int32, ctypes.c_int32)
read_u8: Callable[[int], int] = make_reader(ir.IntType(8), types.uint8, ctypes.c_uint8)
write_f32: Callable[[int, float], None] = make_writer(types.float32, ctypes.c_float)
write_f64: Callable[[int, float], None] = make_writer(types.float64, ctypes.c_double)
write_i32: Callable[[int, int], None] = make_writer(types.int32, ctypes.c_int32)
write_u8: Callable[[int, int], None] = make_writer(types.uint8, ctypes.c_uint8)
