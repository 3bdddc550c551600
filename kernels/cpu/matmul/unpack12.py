"""Bits of kernels.cpu.matmul.packed12: from 12 a number to the 16 that they are.

    a group   4 words of k of 16 columns, of one strip after the other:
              low     [2, 64]  the lower bytes of two words' numbers each
              codes   [64]     4 bits for the first two words, 4 for the others

A bfloat16 is two bytes. The lower one is there as it is. The upper one, a sign and the exponent but for its
last bit, stands in a table of 16, where its code says:

    code 1 .. 7, 9 .. 15   sign << 7 | base + code % 8
    code 0, 8              the number is rare: it is the next one of the strip's list, as it is

So 64 codes are looked up by one instruction, and two more put two registers of numbers together: seven
for four registers where nothing in a group is rare, some thirty elsewhere. As the latter work on 16 bytes at
a time, a register of low bytes has 8 numbers of one word and 8 of the other, in turns.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from kernels.cpu.isa.sets.avx512_vbmi import HALVES, bytes_of_table, hidden, replaced
from kernels.cpu.isa.vectors import (
    BYTES,
    I32,
    I64,
    LANES,
    call,
    load,
    store,
    word,
)
from kernels.cpu.runtime.work_split import COLUMNS, VECTORS

WORDS = 4
"""Of k, in a group."""
STRIP_BYTES = 192
"""Bytes of a strip in a group."""
GROUP = VECTORS * STRIP_BYTES
AHEAD = 16
"""Groups between what is multiplied and what is prefetched: no CPU foresees this stream far
enough, and without prefetching, eight rows take twice as long."""
CODES = STRIP_BYTES - 64
"""Where the codes begin, in a strip."""
NUM_CODES = 7
"""Of exponents but for their last bit, see above."""
_RARE = 0xFF
"""In the table; no upper byte of a number that is not rare."""
_LOWER = [at for byte in range(64) if byte % 16 < 8 for at in (byte, 64 + byte)]
_UPPER = [at for byte in range(64) if byte % 16 >= 8 for at in (byte, 64 + byte)]
"""Of two registers of bytes, the first or the second 8 of every 16, in turns."""


def each(value: int) -> Any:
    """A constant in all lanes."""
    return ir.Constant(HALVES, [value] * (2 * LANES))


def table_of(builder: Any, base: Any) -> Any:
    """BYTES: the upper byte of each code, four times."""
    nothing, first = ir.Constant(BYTES, ir.Undefined), ir.Constant(I32, 0)
    one = builder.insert_element(nothing, builder.trunc(base, ir.IntType(8)), first)
    bases = builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(I32, 64), [0] * 64))
    kept = [0xFF if code % 8 else 0 for code in range(64)]
    added = [(code & 8) << 4 | code % 8 if code % 8 else _RARE for code in range(64)]
    return builder.add(builder.and_(bases, ir.Constant(BYTES, kept)), ir.Constant(BYTES, added))


class Strip:
    """A strip's group: its address. table: of the upper bytes."""

    def __init__(self, builder: Any, at: Any, table: Any) -> None:
        self._builder, self._at, self._table = builder, at, table

    def codes(self) -> Any:
        """HALVES."""
        return load(self._builder, self._builder.add(self._at, word(CODES)), HALVES)

    def two_words(self, half: int) -> tuple[Any, Any]:
        """The first two or the last two, of which no number is rare."""
        return self._two_words(self.codes(), half)

    def unpack(self) -> list[Any]:
        """Its words, of which no number is rare."""
        return [*self.two_words(0), *self.two_words(1)]

    def unpack_rare(self, rare: Any) -> list[Any]:
        """Its words, and the address of the next group's first rare number. rare: of this group's."""
        builder, words = self._builder, []
        codes = hidden(builder, self.codes())
        for halves in (*self._two_words(codes, 0), *self._two_words(codes, 1)):
            is_rare = builder.icmp_unsigned(">=", halves, each(_RARE << 8))
            listed = load(builder, rare, HALVES)
            words.append(replaced(builder, halves, listed, is_rare))
            count = call(builder, "llvm.ctpop.i32", I32, builder.bitcast(is_rare, I32))
            rare = builder.add(rare, builder.shl(builder.zext(count, I64), word(1)))
        return [*words, rare]

    def _two_words(self, codes: Any, half: int) -> tuple[Any, Any]:
        builder = self._builder
        indexes = builder.bitcast(builder.lshr(codes, each(4)) if half else codes, BYTES)
        upper = bytes_of_table(builder, self._table, indexes)
        lower = load(builder, builder.add(self._at, word(64 * half)), BYTES)
        mask = ir.VectorType(I32, 64)
        first, second = (
            builder.bitcast(builder.shuffle_vector(lower, upper, ir.Constant(mask, bytes_)), HALVES)
            for bytes_ in (_LOWER, _UPPER)
        )
        return first, second


def _merged(builder: Any, ways: list[tuple[Any, Any]]) -> Any:
    """A value, from whichever block the way led here."""
    phi = builder.phi(ways[0][1].type)
    for block, value in ways:
        phi.add_incoming(value, block)
    return phi


def _one_is_rare(builder: Any, strips: list[Strip]) -> Any:
    """Whether three bits of a code are 0: then its highest bit, which is set first, is borrowed."""
    kept = each(-1)
    for strip in strips:
        borrowed = builder.sub(builder.or_(strip.codes(), each(0x8888 - 0x10000)), each(0x1111))
        kept = builder.and_(kept, borrowed)
    borrowed = builder.and_(builder.not_(kept), each(0x8888 - 0x10000))
    bits = builder.bitcast(builder.icmp_unsigned("!=", borrowed, each(0)), I32)
    return builder.icmp_unsigned("!=", bits, ir.Constant(I32, 0))


def unpack(builder: Any, strips: list[Strip], lists: list[Any]) -> tuple[list[list[Any]], list[Any]]:
    """Their words, and their lists for the next group. lists: of each strip the address of its next rare
    number. Most groups have none, and take a quarter of the instructions."""
    ways = []
    with builder.if_else(_one_is_rare(builder, strips), likely=False) as (rare, usual):
        with rare:
            values = [strip.unpack_rare(at) for strip, at in zip(strips, lists, strict=True)]
            ways.append((builder.block, values))
        with usual:
            values = [[*strip.unpack(), at] for strip, at in zip(strips, lists, strict=True)]
            ways.append((builder.block, values))
    parts = [
        [_merged(builder, [(block, values[v][i]) for block, values in ways]) for i in range(WORDS + 1)]
        for v in range(len(strips))
    ]
    return [part[:-1] for part in parts], [part[-1] for part in parts]


def write_words(builder: Any, words: Sequence[Any], first: int, v: int, out: Any) -> None:
    """Some of a group's words, from the first on, of strip v: as kernels.cpu.matmul.packed has them. out: of
    a group."""
    for place, values in enumerate(words, first):
        store(builder, values, builder.add(out, word(4 * COLUMNS * place + 4 * LANES * v)))


def write_rare(builder: Any, strips: list[Strip], lists: list[Any], out: Any) -> list[Any]:
    """Writes a strip's words again where a number of it is rare. Returns the lists for the next group.

    Seldom has a group of three strips rare numbers in two of them: to ask each one once more costs less than
    to write all."""
    before, after = builder.block, []
    with builder.if_then(_one_is_rare(builder, strips), likely=False):
        for v, (strip, at) in enumerate(zip(strips, lists, strict=True)):
            usual = builder.block
            with builder.if_then(_one_is_rare(builder, [strip])):
                *words, rare = strip.unpack_rare(at)
                write_words(builder, words, 0, v, out)
                changed = builder.block
            after.append(_merged(builder, [(usual, at), (changed, rare)]))
        inside = builder.block
    pairs = zip(lists, after, strict=True)
    return [_merged(builder, [(before, same), (inside, changed)]) for same, changed in pairs]


def lists_of_strips(builder: Any, rare: Any, vectors: int) -> list[Any]:
    """Addresses of so many strips' first rare numbers. rare: address of these addresses."""
    return [load(builder, builder.add(rare, word(8 * v)), I64) for v in range(vectors)]
