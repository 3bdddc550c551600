"""Vectors of 32 numbers of 16 bits, and of the 64 bytes of these.

Each function is the reference of an intrinsic, as those of kernels.cpu.isa.simd.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import Intrinsic, lowered_by
from kernels.cpu.compiler.vectors import Mask, i8x64, i16x32, i32x16
from kernels.cpu.isa import vectors
from kernels.cpu.isa.operations import joined
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.simd import memory
from kernels.cpu.isa.vectors import BYTES, I32, I32S, I64, LANES, call

HALVES = types.i16x32.llvm
COUNT = 2 * LANES
"""Numbers of 16 bits in a vector."""
_PLACES = ir.VectorType(I32, 4 * LANES)
_FOUR_WORDS = ir.VectorType(I32, 4)


@lowered_by(lambda b, address: vectors.load(b, address, HALVES), types.i16x32(types.int64))
def load_i16x32(address: int) -> i16x32:
    """32 numbers of 16 bits."""
    return i16x32(memory(address, np.int16, COUNT).copy())


@lowered_by(lambda b, address: vectors.load(b, address, BYTES), types.i8x64(types.int64))
def load_i8x64(address: int) -> i8x64:
    """64 bytes."""
    return i8x64(memory(address, np.int8, 2 * COUNT).copy())


def _four_rows(builder: Any, address: Any, stride: Any, first: int, place: int) -> Any:
    """Word `place` of the four at each of four addresses, the first of which is that of row `first`. As LLVM
    does for all four places with eight shuffles: words of two rows in turns, then of four."""
    rows = []
    for row in range(first, first + 4):
        at = builder.add(address, builder.mul(stride, ir.Constant(I64, row)))
        rows.append(vectors.load(builder, at, _FOUR_WORDS))
    turns = ir.Constant(_FOUR_WORDS, [0, 4, 1, 5] if place < 2 else [2, 6, 3, 7])
    pairs = [builder.shuffle_vector(rows[i], rows[i + 1], turns) for i in (0, 2)]
    return builder.shuffle_vector(
        *pairs, ir.Constant(_FOUR_WORDS, [2, 3, 6, 7] if place % 2 else [0, 1, 4, 5])
    )


def _halves_of_rows(builder: Any, address: Any, stride: Any, place: Any) -> Any:
    parts = [_four_rows(builder, address, stride, first, place.constant) for first in range(0, LANES, 4)]
    return builder.bitcast(joined(builder, joined(builder, *parts[:2]), joined(builder, *parts[2:])), HALVES)


@lowered_by(_halves_of_rows, types.i16x32(types.int64, types.int64, types.int64))
def halves_of_rows(address: int, stride: int, place: int) -> i16x32:
    """Two numbers of each of 16 rows: those of the word at `place`, a constant 0 .. 3, of the four at an
    address. stride: bytes from row to row."""
    rows = [memory(address + row * stride + 4 * place, np.int16, 2) for row in range(LANES)]
    return i16x32(np.concatenate(rows))


@lowered_by(lambda b, address, x: vectors.store(b, x, address), types.void(types.int64, types.i16x32))
def store_i16x32(address: int, x: i16x32) -> None:
    """Writes 32 numbers of 16 bits."""
    memory(address, np.int16, COUNT)[:] = x.lanes


@lowered_by(lambda b, x: b.bitcast(x, BYTES), types.i8x64(types.i16x32))
def bytes_of(x: i16x32) -> i8x64:
    """The bytes of each number, the lower one first."""
    return i8x64(x.lanes.view(np.int8))


@lowered_by(lambda b, x: b.bitcast(x, HALVES), types.i16x32(types.i8x64))
def halves_of_bytes(x: i8x64) -> i16x32:
    """The numbers of which these are the bytes."""
    return i16x32(x.lanes.view(np.int16))


@lowered_by(lambda b, x: b.bitcast(x, I32S), types.i32x16(types.i16x32))
def words_of(x: i16x32) -> i32x16:
    """Two numbers each, the first one in the lower bits."""
    return i32x16(x.lanes.view(np.int32))


@lowered_by(
    lambda b, first, second: OPERATIONS.pack_bytes(b, first, second), types.i8x64(types.i16x32, types.i16x32)
)
def packed_bytes(first: i16x32, second: i16x32) -> i8x64:
    """Numbers of 0 .. 255 as bytes: eight of the first and eight of the second, in turns."""
    both = np.stack((first.lanes.reshape(4, 8), second.lanes.reshape(4, 8)), 1)
    return i8x64(both.clip(0, 255).astype(np.uint8).view(np.int8).ravel())


_TURNS = tuple(
    ir.Constant(_PLACES, [at for byte in range(64) if byte % 16 // 8 == half for at in (byte, 64 + byte)])
    for half in (0, 1)
)


@lowered_by(
    lambda b, x, y, half: b.shuffle_vector(x, y, _TURNS[half.constant]),
    types.i8x64(types.i8x64, types.i8x64, types.int64),
)
def interleaved_bytes(x: i8x64, y: i8x64, half: int) -> i8x64:
    """Of each 16 bytes the first or the second 8, those of x and those of y in turns. half: 0 or 1, a
    constant."""
    chosen = [side.lanes.reshape(4, 2, 8)[:, half].ravel() for side in (x, y)]
    return i8x64(np.stack(chosen, 1).ravel())


@lowered_by(
    lambda b, table, indexes: OPERATIONS.look_up(b, table, indexes), types.i8x64(types.i8x64, types.i8x64)
)
def bytes_of_table(table: i8x64, indexes: i8x64) -> i8x64:
    """table[indexes % 16]. table: 16 bytes, four times."""
    return i8x64(table.lanes[indexes.lanes & 15])


@lowered_by(lambda b, x, limit: b.icmp_unsigned(">=", x, limit), types.mask32(types.i16x32, types.i16x32))
def reaches(x: i16x32, limit: int) -> Mask:
    """x >= limit, both as numbers without sign."""
    return Mask(x.lanes.view(np.uint16) >= limit)


def _bits(builder: Any, mask: Any) -> Any:
    return builder.bitcast(mask, I32)


@lowered_by(
    lambda b, mask: b.icmp_unsigned("!=", _bits(b, mask), ir.Constant(I32, 0)), types.boolean(types.mask32)
)
def any_of(mask: Mask) -> bool:
    """Whether one of 32 is set."""
    return bool(mask.lanes.any())


@lowered_by(
    lambda b, mask: b.zext(call(b, "llvm.ctpop.i32", I32, _bits(b, mask)), I64), types.int64(types.mask32)
)
def count_of(mask: Mask) -> int:
    """How many of 32 are set."""
    return int(mask.lanes.sum())


@lowered_by(
    lambda b, values, listed, chosen: OPERATIONS.expand(b, values, listed, chosen),
    types.i16x32(types.i16x32, types.i16x32, types.mask32),
)
def replaced(values: i16x32, listed: i16x32, chosen: Mask) -> i16x32:
    """The values, of which the chosen ones are the first that are listed, in their order."""
    lanes = values.lanes.copy()
    lanes[chosen.lanes] = listed.lanes[: chosen.lanes.sum()]
    return i16x32(lanes)


@lowered_by(lambda b, mask: b.zext(_bits(b, mask), I64), types.int64(types.mask32))
def bits_of_halves(mask: Mask) -> int:
    """A number of 32 bits, of which bit i is lane i."""
    return int(np.packbits(mask.lanes, bitorder="little").view(np.uint32)[0])


@lowered_by(lambda b, x: OPERATIONS.hide(b, x), types.i16x32(types.i16x32))
def hidden(x: i16x32) -> i16x32:
    """The same numbers, of which LLVM does not know that on x86-64: else it computes what both branches need
    before the branch, for all words at once, and the registers do not suffice."""
    return x


def constant_i8(lanes: Iterable[int]) -> Callable[[], i8x64]:
    """Makes f(), 64 constants."""
    values = list(lanes)
    constant, signatures = ir.Constant(BYTES, values), (types.i8x64(),)
    return Intrinsic(signatures, lambda b: constant, lambda: i8x64(np.array(values)))
