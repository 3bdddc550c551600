"""Operations on 16 values that only weights and inputs in groups need."""

from collections.abc import Callable, Iterable

import numpy as np
from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import Intrinsic, Static, lowered_by
from kernels.cpu.compiler.vectors import f32x16, i32x16
from kernels.cpu.isa import vectors
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.simd import load_first_bf16, memory, select
from kernels.cpu.isa.vectors import F32, F32S, I8S, I32, I32S, LANES, call
from kernels.cpu.matmul.groups.e2m1 import INTEGERS
from kernels.cpu.matmul.groups.records import LARGEST_ZERO

LOWER = 0x0F0F0F0F
"""Of a word, the lower 4 bits of each byte."""
BASE, BASE_BITS = 1.5 * 2**23, 0x4B400000
"""Where sums of integers begin, as a float32 (kernels.cpu.matmul.groups.product)."""
OFFSET_SHIFT = 6
OFFSET = 1 << OFFSET_SHIFT
"""What is added to p - z, so that a byte of it has no sign (kernels.cpu.matmul.groups.many_rows)."""
assert OFFSET == LARGEST_ZERO


@lowered_by(lambda b, x: OPERATIONS.round_to_int(b, x), types.i32x16(types.f32x16))
def nearest(x: f32x16) -> i32x16:
    """The nearest int32, ties to even. NaN, and what has no int32, becomes the least int32."""
    fits = np.abs(x.lanes) < 2.0**31
    return i32x16(np.where(fits, np.rint(np.where(fits, x.lanes, 0)), -(2**31)))


@lowered_by(
    lambda b, address, x: vectors.store(b, b.trunc(x, I8S), address), types.void(types.int64, types.i32x16)
)
def store_i8(address: int, x: i32x16) -> None:
    """Writes the lower bytes of 16 int32."""
    memory(address, np.int8, LANES)[:] = x.lanes.astype(np.int8)


@lowered_by(lambda b, x: call(b, "llvm.vector.reduce.fmax.v16f32", F32, x), types.float32(types.f32x16))
def largest_lane(x: f32x16) -> float:
    """The largest of the lanes, none of which is NaN."""
    return float(x.lanes.max())


@lowered_by(lambda b, x: call(b, "llvm.vector.reduce.add.v16i32", I32, x), types.int32(types.i32x16))
def sum_of_lanes(x: i32x16) -> int:
    """The sum of the lanes."""
    return int(x.lanes.sum(dtype=np.int64))


@lowered_by(lambda b, codes: OPERATIONS.from_table(b, INTEGERS, codes), types.i32x16(types.i32x16))
def integers_of_e2m1(codes: i32x16) -> i32x16:
    """The integer of each byte, a code of 0 .. 15 (kernels.cpu.matmul.groups.e2m1)."""
    return i32x16(np.array(INTEGERS, np.uint8)[codes.lanes.view(np.uint8)].view(np.int32))


_TWO_VECTORS = types.i32x16(types.i32x16, types.i32x16)


@lowered_by(lambda b, x, y: OPERATIONS.multiply_small(b, x, y), _TWO_VECTORS)
def multiply_small(x: i32x16, y: i32x16) -> i32x16:
    """x * y, of numbers of 16 bits: x of 0 .. 32767, y signed."""
    return i32x16(x.lanes.astype(np.int16).astype(np.int32) * y.lanes.astype(np.int16))


@lowered_by(lambda b, x, y: call(b, "llvm.smax.v16i32", I32S, x, y), _TWO_VECTORS)
def larger_integer(x: i32x16, y: i32x16) -> i32x16:
    """The larger one of each lane."""
    return i32x16(np.maximum(x.lanes, y.lanes))


@lowered_by(lambda b, x: call(b, "llvm.vector.reduce.smax.v16i32", I32, x), types.int32(types.i32x16))
def largest_integer(x: i32x16) -> int:
    """The largest of the lanes."""
    return int(x.lanes.max())


@lowered_by(lambda b, x: b.bitcast(x, F32), types.float32(types.int32))
def float_of(bits: int) -> float:
    """The float32 that has these bits."""
    return float(np.int32(bits).view(np.float32))


@lowered_by(lambda b, x: b.bitcast(x, I32S), types.i32x16(types.f32x16))
def bits_of_lanes(x: f32x16) -> i32x16:
    """The bits of each float32."""
    return i32x16(x.lanes.view(np.int32))


@lowered_by(lambda b, bits: b.bitcast(bits, F32S), types.f32x16(types.i32x16))
def as_f32(bits: i32x16) -> f32x16:
    """The float32 that have these bits."""
    return f32x16(bits.lanes.view(np.float32))


@lowered_by(lambda b, x: b.bitcast(x, I32), types.int32(types.float32))
def bits_of(x: float) -> int:
    """The bits of a float32, as int32."""
    return int(np.float32(x).view(np.int32))


def integers_in(e2m1: Static[bool], words: i32x16, part: Static[int]) -> i32x16:
    """Four of the eight integers of each word, a byte each. e2m1: the words hold codes of floats."""
    if e2m1:
        return integers_of_e2m1(words >> (4 * part) & LOWER)
    return words >> (4 * part) & LOWER


def values_at(address: int, left: int) -> f32x16:
    """16 bfloat16 of a row of which so many are left, as float32; behind its end are zeros."""
    return load_first_bf16(address, max(0, min(left, LANES)))


def smaller(x: f32x16, y: f32x16) -> f32x16:
    """The smaller one of each lane."""
    return select(x < y, x, y)


def larger(x: f32x16, y: f32x16) -> f32x16:
    """The larger one of each lane."""
    return select(x > y, x, y)


def constant_f32(lanes: Iterable[float]) -> Callable[[], f32x16]:
    """Makes f(), 16 constants."""
    values = [float(lane) for lane in lanes]
    return Intrinsic(types.f32x16(), lambda b: ir.Constant(F32S, values), lambda: f32x16(np.array(values)))


def constant_i32(lanes: Iterable[int]) -> Callable[[], i32x16]:
    """Makes f(), 16 constants."""
    values = list(lanes)
    return Intrinsic(types.i32x16(), lambda b: ir.Constant(I32S, values), lambda: i32x16(np.array(values)))
