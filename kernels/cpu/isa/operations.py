"""What kernels need of a processor beyond LLVM's own vector instructions.

An instance computes with one instruction set (kernels.cpu.instruction_sets); kernels.cpu.isa.selected has
that of the process. This class is written in LLVM's own instructions, and so runs on any CPU that LLVM
compiles for; a subclass replaces what its set has an instruction for. Every result is specified exactly, and
the same in all of them, except where a docstring says otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from kernels.cpu.isa.dot import Dot, FloatDot, IntegerDot, NibbleDot, PairDot
from kernels.cpu.isa.e4m3 import widened
from kernels.cpu.isa.vectors import (
    BYTES,
    F32S,
    I8,
    I16S,
    I32,
    I32S,
    call,
    load,
    load_lanes,
    splat,
    store,
    store_lanes,
)

_HALF_OF_BYTES, _PLACES = ir.VectorType(I8, 32), ir.VectorType(I32, 64)


@dataclass(frozen=True)
class Tiles:
    """How a product divides its rows into tiles, which are as many rows as registers hold sums of."""

    rows: int  # of a tile, while so many are left
    rest: tuple[
        tuple[int, int], ...
    ]  # then a tile of (rows) wherever at least (rows) are left, in this order
    least_rest: int = 0  # fewer rows at the end take the rows of one tile more with them
    prefetches: bool = False  # whole tiles ask for memory that is needed next
    distance: int = (
        0  # bytes from weights to those prefetched with them; 0: the next block's, or nearer; -1: none
    )


class Operations:
    """Vectors are those of kernels.cpu.isa.vectors: 16 float32 (F32S) or int32 (I32S)."""

    block = Tiles(2, ((1, 1),), distance=6144)
    """Tiles of a product with 48 columns, a block of the packed weight."""
    strip = Tiles(6, ((4, 7), (5, 5), (4, 4), (3, 3), (2, 2), (1, 1)), least_rest=3)
    """Tiles with 16 columns."""
    block_rows = 2
    """The most rows that are multiplied with whole blocks."""
    rereads_weights = True
    """Whether registers are too few to keep a word's weights until all of its parts are multiplied."""
    score_tiles = {3: 2, 4: 1, 6: 1}
    """Tiles of 16 positions that attention scores side by side, by (query, head) pairs: a loop for each."""
    mix_vectors = {3: 2, 4: 1, 6: 1}
    """Vectors of a value that attention mixes side by side, likewise."""
    floats: Dot = FloatDot()
    """Of float32 values, with float32 sums."""
    pairs: Dot = PairDot()
    """Of pairs of bfloat16, with float32 sums."""
    quads: Dot = IntegerDot()
    """Of four bytes, signed weights and unsigned inputs, with int32 sums."""
    nibbles: Dot = NibbleDot(IntegerDot())
    """Of four bytes, unsigned weights below 128 and signed inputs, with int32 sums."""
    masked: tuple[Any, ...] = (F32S, I32S)
    """Vectors of which an instruction loads and stores masked lanes; of others it is done one by one."""
    masked_stores_whole = True
    """Whether that instruction is as fast as any other where it stores all lanes."""
    futex = 98
    """The number of Linux's system call futex(), as most architectures count."""

    def pause(self, builder: Any) -> None:
        """Waits for some 10 ns where the processor has an instruction for that."""

    def multiply_small(self, builder: Any, one: Any, other: Any) -> Any:
        """one * other, I32S, of numbers of 16 bits: one of 0 .. 32767, other signed."""
        return builder.mul(one, other)

    def from_table(self, builder: Any, table: Sequence[int], indexes: Any) -> Any:
        """table[index] of each byte, I32S. table: 16 bytes; indexes: 0 .. 15."""
        each = builder.bitcast(indexes, BYTES)
        found = splat(BYTES, table[0])
        for index, value in enumerate(table[1:], 1):
            found = builder.select(
                builder.icmp_unsigned("==", each, splat(BYTES, index)), splat(BYTES, value), found
            )
        return builder.bitcast(found, I32S)

    def pack_bytes(self, builder: Any, first: Any, second: Any) -> Any:
        """Two vectors of 32 numbers of 0 .. 255, 16 bits each, as BYTES: eight of the first and eight of the
        second, in turns."""
        sides = (builder.trunc(side, _HALF_OF_BYTES) for side in (first, second))
        places = [32 * side + 8 * eight + i for eight in range(4) for side in range(2) for i in range(8)]
        return builder.shuffle_vector(*sides, ir.Constant(_PLACES, places))

    def look_up(self, builder: Any, table: Any, indexes: Any) -> Any:
        """table[index % 16] of each byte, BYTES. table: 16 bytes, four times."""
        each, found = builder.and_(indexes, splat(BYTES, 15)), splat(BYTES, 0)
        for index in range(16):
            value = builder.shuffle_vector(table, table, ir.Constant(_PLACES, [index] * 64))
            found = builder.select(builder.icmp_unsigned("==", each, splat(BYTES, index)), value, found)
        return found

    def expand(self, builder: Any, values: Any, listed: Any, chosen: Any) -> Any:
        """The values, 32 of 16 bits, of which the chosen ones are the first that are listed, in order."""
        number = ir.Constant(I32, 0)
        for lane in range(values.type.count):
            at = ir.Constant(I32, lane)
            is_chosen = builder.extract_element(chosen, at)
            sides = builder.extract_element(listed, number), builder.extract_element(values, at)
            values = builder.insert_element(values, builder.select(is_chosen, *sides), at)
            number = builder.add(number, builder.zext(is_chosen, I32))
        return values

    def hide(self, builder: Any, values: Any) -> Any:
        """The same vector of 512 bits; LLVM may not know that it is the same."""
        return values

    def round_to_bfloat16(self, builder: Any, values: Any) -> Any:
        """F32S to bfloat16, nearest, ties to even, as I16S. NaN stays NaN."""
        bits = builder.bitcast(values, I32S)
        odd = builder.and_(builder.lshr(bits, splat(I32S, 16)), splat(I32S, 1))
        rounded = builder.add(bits, builder.add(odd, splat(I32S, 0x7FFF)))
        is_nan = builder.fcmp_unordered("uno", values, values)
        quiet = builder.or_(bits, splat(I32S, 0x400000))
        halves = builder.lshr(builder.select(is_nan, quiet, rounded), splat(I32S, 16))
        return builder.trunc(halves, I16S)

    def widen_e4m3(self, builder: Any, codes: Any) -> Any:
        """A vector of bytes, numbers of e4m3, as bfloat16: as many integers of 16 bits. NaN stays NaN."""
        return widened(builder, codes)

    def round_to_int(self, builder: Any, values: Any) -> Any:
        """F32S to I32S, nearest, ties to even. NaN, and what has no int32, becomes the least int32."""
        whole = call(builder, "llvm.rint.v16f32", F32S, values)
        fits = builder.fcmp_ordered("<", call(builder, "llvm.fabs.v16f32", F32S, whole), splat(F32S, 2.0**31))
        integers = builder.fptosi(builder.select(fits, whole, splat(F32S, 0.0)), I32S)
        return builder.select(fits, integers, splat(I32S, -(2**31)))

    def scale(self, builder: Any, values: Any, exponents: Any) -> Any:
        """values * 2 ** exponents, rounded once, of whole exponents from -252 to 254 and values from 1/2 to
        2; F32S."""
        whole = self.round_to_int(builder, exponents)
        half = builder.ashr(whole, splat(I32S, 1))
        for part in (half, builder.sub(whole, half)):
            biased = builder.add(part, splat(I32S, 127))
            values = builder.fmul(values, builder.bitcast(builder.shl(biased, splat(I32S, 23)), F32S))
        return values

    def reciprocal(self, builder: Any, values: Any) -> Any:
        """1 / values, of F32S: correctly rounded."""
        return builder.fdiv(splat(F32S, 1.0), values)

    def load_first(self, builder: Any, address: Any, kind: Any, mask: Any, whole: Any) -> Any:
        """The masked lanes of F32S, I32S or I16S, and zeros. whole: whether these are all."""
        if kind in self.masked:
            return load_lanes(builder, address, kind, mask)
        with builder.if_else(whole) as (at_once, some):
            with at_once:
                every, block = load(builder, address, kind), builder.block
            with some:
                first, other_block = load_lanes(builder, address, kind, mask), builder.block
        loaded = builder.phi(kind)
        loaded.add_incoming(every, block)
        loaded.add_incoming(first, other_block)
        return loaded

    def store_first(self, builder: Any, values: Any, address: Any, mask: Any, whole: Any) -> None:
        """The masked lanes of F32S, I32S or I16S. whole: whether these are all."""
        if self.masked_stores_whole and values.type in self.masked:
            store_lanes(builder, values, address, mask)
            return
        with builder.if_else(whole) as (at_once, some):
            with at_once:
                store(builder, values, address)
            with some:
                store_lanes(builder, values, address, mask)


def halves_of(builder: Any, values: Any) -> list[Any]:
    """The lower and the upper lanes of a vector."""
    length = values.type.count
    lanes = ir.VectorType(ir.IntType(32), length // 2)
    nothing = ir.Constant(values.type, ir.Undefined)
    return [
        builder.shuffle_vector(values, nothing, ir.Constant(lanes, list(range(first, first + length // 2))))
        for first in (0, length // 2)
    ]


def joined(builder: Any, lower: Any, upper: Any) -> Any:
    """One vector of two."""
    length = 2 * lower.type.count
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), length), list(range(length)))
    return builder.shuffle_vector(lower, upper, lanes)
