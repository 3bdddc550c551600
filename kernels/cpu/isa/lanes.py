"""What becomes of the 16 lanes of a vector: lanes of other types, sums and the like of them, constants.

Each function is the reference of an intrinsic, as those of kernels.cpu.isa.simd.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import Intrinsic, lowered_by
from kernels.cpu.compiler.vectors import Mask, f32x16, i32x16
from kernels.cpu.isa import vectors
from kernels.cpu.isa.dot import I16_PAIRS
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.simd import memory, select
from kernels.cpu.isa.vectors import BITS, F32, F32S, I8S, I32, I32S, I64, LANES, call

BIT = ir.IntType(1)


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


@lowered_by(lambda b, x: b.fptosi(x, I32S), types.i32x16(types.f32x16))
def truncated(x: f32x16) -> i32x16:
    """Whole numbers as int32, others without their fraction. Of NaN and what has no int32, any number."""
    with np.errstate(invalid="ignore"):
        return i32x16(x.lanes.astype(np.int32))


@lowered_by(lambda b, x, y: OPERATIONS.multiply_small(b, x, y), types.i32x16(types.i32x16, types.i32x16))
def multiply_small(x: i32x16, y: i32x16) -> i32x16:
    """x * y, of numbers of 16 bits: x of 0 .. 32767, y signed."""
    return i32x16(x.lanes.astype(np.int16).astype(np.int32) * y.lanes.astype(np.int16))


def _of_halves(builder: Any, x: Any, y: Any) -> Any:
    return builder.bitcast(builder.mul(*(builder.bitcast(side, I16_PAIRS) for side in (x, y))), I32S)


@lowered_by(_of_halves, types.i32x16(types.i32x16, types.i32x16))
def multiply_halves(x: i32x16, y: i32x16) -> i32x16:
    """x * y of each 16 bits of theirs, of which the lower 16 bits stay."""
    with np.errstate(over="ignore"):
        return i32x16((x.lanes.view(np.int16) * y.lanes.view(np.int16)).view(np.int32))


@lowered_by(
    lambda b, x, y, half: _interleaved(b, x, y, half.constant),
    types.i32x16(types.i32x16, types.i32x16, types.int64),
)
def interleaved(x: i32x16, y: i32x16, half: int) -> i32x16:
    """The lanes of two vectors in turns, of which there are two vectors. half: 0 or 1, a constant."""
    return i32x16(np.stack((x.lanes, y.lanes), 1).ravel()[LANES * half :][:LANES])


def _interleaved(builder: Any, x: Any, y: Any, half: int) -> Any:
    places = [at for lane in range(8 * half, 8 * half + 8) for at in (lane, LANES + lane)]
    return builder.shuffle_vector(x, y, ir.Constant(I32S, places))


@lowered_by(lambda b, x: call(b, "llvm.vector.reduce.fmax.v16f32", F32, x), types.float32(types.f32x16))
def largest_lane(x: f32x16) -> float:
    """The largest of the lanes, none of which is NaN."""
    return float(x.lanes.max())


@lowered_by(lambda b, x: call(b, "llvm.vector.reduce.add.v16i32", I32, x), types.int32(types.i32x16))
def sum_of_lanes(x: i32x16) -> int:
    """The sum of the lanes."""
    return int(x.lanes.sum(dtype=np.int64))


@lowered_by(lambda b, x, y: call(b, "llvm.smax.v16i32", I32S, x, y), types.i32x16(types.i32x16, types.i32x16))
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


def smaller(x: f32x16, y: f32x16) -> f32x16:
    """The smaller one of each lane."""
    return select(x < y, x, y)


def larger(x: f32x16, y: f32x16) -> f32x16:
    """The larger one of each lane."""
    return select(x > y, x, y)


_BITS = ir.IntType(LANES)


@lowered_by(
    lambda b, mask: call(b, "llvm.vector.reduce.or.v16i1", BIT, mask),
    types.boolean(types.mask16),
)
def any_lane(mask: Mask) -> bool:
    """Whether one of 16 is set."""
    return bool(mask.lanes.any())


@lowered_by(lambda b, mask: b.zext(b.bitcast(mask, _BITS), I64), types.int64(types.mask16))
def bits_of_mask(mask: Mask) -> int:
    """A number of 16 bits, of which bit i is lane i."""
    return int(np.packbits(mask.lanes, bitorder="little").view(np.uint16)[0])


@lowered_by(lambda b, bits: b.bitcast(b.trunc(bits, _BITS), BITS), types.mask16(types.int64))
def mask_of_bits(bits: int) -> Mask:
    """Lane i is bit i of a number."""
    return Mask(bits >> np.arange(LANES) & 1 == 1)


@lowered_by(
    lambda b, bits: call(b, "llvm.cttz.i64", I64, bits, ir.Constant(BIT, 1)), types.int64(types.int64)
)
def lowest_bit(bits: int) -> int:
    """The number of the lowest bit that is set; there must be one."""
    return (bits & -bits).bit_length() - 1


def constant_f32(lanes: Iterable[float]) -> Callable[[], f32x16]:
    """Makes f(), 16 constants."""
    values = [float(lane) for lane in lanes]
    signatures = (types.f32x16(),)
    return Intrinsic(signatures, lambda b: ir.Constant(F32S, values), lambda: f32x16(np.array(values)))


def constant_i32(lanes: Iterable[int]) -> Callable[[], i32x16]:
    """Makes f(), 16 constants."""
    values = list(lanes)
    signatures = (types.i32x16(),)
    return Intrinsic(signatures, lambda b: ir.Constant(I32S, values), lambda: i32x16(np.array(values)))


def byte_table(table: Sequence[int]) -> Callable[[i32x16], i32x16]:
    """Makes f(indexes): of each byte of the words, 0 .. 15, what the table has there. table: 16 bytes."""

    def look_up(indexes: i32x16) -> i32x16:
        return i32x16(np.array(table, np.uint8)[indexes.lanes.view(np.uint8)].view(np.int32))

    signatures = (types.i32x16(types.i32x16),)
    return Intrinsic(signatures, lambda b, indexes: OPERATIONS.from_table(b, table, indexes), look_up)
