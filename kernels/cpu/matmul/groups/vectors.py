"""Operations on 16 values that only weights and inputs in groups need."""

from collections.abc import Callable, Iterable

import numpy as np
from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import Intrinsic, lowered_by
from kernels.cpu.compiler.vectors import f32x16, i32x16
from kernels.cpu.isa import vectors
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.simd import load_first_bf16, memory, select
from kernels.cpu.isa.vectors import F32, F32S, I8S, I32, I32S, LANES, call


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


@lowered_by(lambda b, bits: b.bitcast(bits, F32S), types.f32x16(types.i32x16))
def as_f32(bits: i32x16) -> f32x16:
    """The float32 that have these bits."""
    return f32x16(bits.lanes.view(np.float32))


@lowered_by(lambda b, x: b.bitcast(x, I32), types.int32(types.float32))
def bits_of(x: float) -> int:
    """The bits of a float32, as int32."""
    return int(np.float32(x).view(np.int32))


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
