"""Parts of weights in 12 bits (kernels.cpu.matmul.compact.unpack), as they are multiplied where no
instruction multiplies pairs of bfloat16 (kernels.cpu.isa.dot): float32 numbers, of a word of 16 columns one
vector for each part.

    parts [groups, 4 words, 2 parts, 16] float32, of one strip

A group is unpacked as if no number of it were rare. Those that are, are written over what is there, one by
one.
"""

from kernels.cpu.compiler.language import Static, unroll
from kernels.cpu.compiler.vectors import i8x64, i16x32, i32x16
from kernels.cpu.isa.lanes import lowest_bit
from kernels.cpu.isa.sets.halves import bits_of_halves, count_of, hidden, load_i16x32, reaches, words_of
from kernels.cpu.isa.simd import PAIR_PARTS, pair_weights, select, store_i32
from kernels.cpu.isa.vectors import read_u16, write_u32
from kernels.cpu.matmul.compact.unpack import CODES, RARE, WORDS, two_words

PARTS = WORDS * PAIR_PARTS
"""Vectors of a strip's group."""
PARTS_BYTES = 64 * PARTS
HALF = PARTS // 2
"""Vectors of two words, which are unpacked together."""


def half_parts(strip: int, table: i8x64, half: Static[int]) -> list[i32x16]:
    """Parts of the first two or the last two words of a strip's group. strip: its address."""
    words = two_words(strip, table, load_i16x32(strip + CODES), half)
    return [pair_weights(words_of(words[i // PAIR_PARTS]), i % PAIR_PARTS) for i in unroll(range(HALF))]


def write_parts(strips: list[int], table: i8x64, out: int) -> None:
    """Those of a group of one strip, no number of which is rare."""
    for half in unroll(range(2)):
        parts = half_parts(strips[0], table, half)
        for i in unroll(range(HALF)):
            store_i32(out + 64 * (HALF * half + i), parts[i])


def words_with_one(strip: int, table: i8x64, rare: int, count: list[int]) -> list[i16x32]:
    """The words of a group of which one number is rare: the one at `rare`. count: becomes how many are."""
    codes = hidden(load_i16x32(strip + CODES))
    first, last = two_words(strip, table, codes, 0), two_words(strip, table, codes, 1)
    words, one = [first[0], first[1], last[0], last[1]], i16x32(read_u16(rare))
    for place in unroll(range(WORDS)):
        is_rare = reaches(words[place], RARE << 8)
        words[place] = select(is_rare, one, words[place])
        count[0] += count_of(is_rare)
    return words


def write_all_parts(strips: list[int], v: Static[int], table: i8x64, rare: list[int], parts: int) -> None:
    """Writes those of a group of strip v. rare: of each strip the address of its next rare number, which goes
    on to the next group's."""
    strip = strips[v]
    for half in unroll(range(2)):
        words = two_words(strip, table, hidden(load_i16x32(strip + CODES)), half)
        for i in unroll(range(HALF)):
            part = pair_weights(words_of(words[i // PAIR_PARTS]), i % PAIR_PARTS)
            store_i32(parts + 64 * (HALF * half + i), part)
        for i in unroll(range(2)):
            bits = bits_of_halves(reaches(words[i], RARE << 8))
            while bits != 0:
                number = lowest_bit(bits)
                part_number = HALF * half + PAIR_PARTS * i + 1 - number % 2
                write_u32(parts + 64 * part_number + number // 2 * 4, read_u16(rare[v]) << 16)
                bits = bits & (bits - 1)
                rare[v] += 2
