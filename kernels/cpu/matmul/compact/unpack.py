"""Bits of kernels.cpu.matmul.compact.weight: from 12 a number to the 16 that they are.

    a group   4 words of k of 16 columns, of one strip after the other:
              low     [2, 64]  the lower bytes of two words' numbers each
              codes   [64]     4 bits for the first two words, 4 for the others

A bfloat16 is two bytes. The lower one is there as it is. The upper one, a sign and the exponent but for its
last bit, stands in a table of 16, where its code says:

    code 1 .. 7, 9 .. 15   sign << 7 | base + code % 8
    code 0, 8              the number is rare: it is the next one of the strip's list, as it is

So as many codes as a register has bytes are looked up by one instruction, and two more put two registers of
numbers together: seven for four registers where nothing in a group is rare, some thirty elsewhere. As the
latter work on 16 bytes at a time, a register of low bytes has 8 numbers of one word and 8 of the other, in
turns.
"""

from kernels.cpu.compiler.language import Static, unlikely, unroll
from kernels.cpu.compiler.vectors import i8x64, i16x32
from kernels.cpu.isa.sets.halves import (
    any_of,
    bytes_of,
    bytes_of_table,
    constant_i8,
    count_of,
    halves_of_bytes,
    hidden,
    interleaved_bytes,
    load_i8x64,
    load_i16x32,
    reaches,
    replaced,
    store_i16x32,
)
from kernels.cpu.isa.vectors import LANES
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
RARE = 0xFF
"""In the table; no upper byte of a number that is not rare."""
_EIGHTS, _ONES = 0x8888 - 0x10000, 0x1111
"""The highest and the lowest bit of each code."""
_kept = constant_i8(0xFF if code % 8 else 0 for code in range(64))
_added = constant_i8((code & 8) << 4 | code % 8 if code % 8 else RARE for code in range(64))


def table_of(base: int) -> i8x64:
    """The upper byte of each code, four times."""
    return (i8x64(base) & _kept()) + _added()


def two_words(at: int, table: i8x64, codes: i16x32, half: Static[int]) -> list[i16x32]:
    """The first two or the last two words of a strip's group, as if no number were rare. at: its address;
    table: of the upper bytes."""
    upper = bytes_of_table(table, bytes_of(codes >> 4 if half else codes))
    lower = load_i8x64(at + 64 * half)
    return [halves_of_bytes(interleaved_bytes(lower, upper, part)) for part in unroll(range(2))]


def _usual_words(at: int, table: i8x64, codes: i16x32) -> list[i16x32]:
    """All words, as if no number were rare."""
    first, last = two_words(at, table, codes, 0), two_words(at, table, codes, 1)
    return [first[0], first[1], last[0], last[1]]


def _rare_words(at: int, table: i8x64, lists: list[int], v: Static[int]) -> list[i16x32]:
    """All words. lists: of each strip the address of its next rare number; that of strip v goes on to the
    next group's."""
    words = _usual_words(at, table, hidden(load_i16x32(at + CODES)))
    for place in unroll(range(WORDS)):
        is_rare = reaches(words[place], RARE << 8)
        words[place] = replaced(words[place], load_i16x32(lists[v]), is_rare)
        lists[v] += 2 * count_of(is_rare)
    return words


def one_is_rare(strips: list[int]) -> bool:
    """Whether three bits of a code are 0: then its highest bit, which is set first, is borrowed."""
    kept = i16x32(-1)
    for v in unroll(range(len(strips))):
        kept = kept & ((load_i16x32(strips[v] + CODES) | _EIGHTS) - _ONES)
    return any_of((~kept & _EIGHTS) != 0)


def unpack(strips: list[int], table: i8x64, lists: list[int]) -> list[i16x32]:
    """The words of each strip's group, WORDS of each. strips: addresses; lists: see _rare_words(). Most
    groups have no rare number, and take a quarter of the instructions."""
    words = [i16x32(0) for _ in unroll(range(WORDS * len(strips)))]
    if unlikely(one_is_rare(strips)):
        for v in unroll(range(len(strips))):
            some = _rare_words(strips[v], table, lists, v)
            for place in unroll(range(WORDS)):
                words[WORDS * v + place] = some[place]
    else:
        for v in unroll(range(len(strips))):
            some = _usual_words(strips[v], table, load_i16x32(strips[v] + CODES))
            for place in unroll(range(WORDS)):
                words[WORDS * v + place] = some[place]
    return words


def _write_words(words: list[i16x32], first: Static[int], v: Static[int], out: int) -> None:
    """Some of a group's words, from the first on, of strip v: as kernels.cpu.matmul.packed has them. out: of
    a group."""
    for place in unroll(range(len(words))):
        store_i16x32(out + 4 * COLUMNS * (first + place) + 4 * LANES * v, words[place])


def write_piece(strips: list[int], table: i8x64, half: Static[int], v: Static[int], out: int) -> None:
    """The first two or the last two words of strip v, as if no number were rare."""
    words = two_words(strips[v], table, load_i16x32(strips[v] + CODES), half)
    _write_words(words, 2 * half, v, out)


def write_rare(strips: list[int], table: i8x64, lists: list[int], out: int) -> None:
    """Writes a strip's words again where a number of it is rare. lists: see _rare_words().

    Seldom has a group of three strips rare numbers in two of them: to ask each one once more costs less than
    to write all."""
    if unlikely(one_is_rare(strips)):
        for v in unroll(range(len(strips))):
            if one_is_rare([strips[v]]):
                _write_words(_rare_words(strips[v], table, lists, v), 0, v, out)
