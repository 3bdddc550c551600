"""Makes weights of kernels.cpu.matmul.compact.weight from rows of bfloat16 as checkpoints have them, strip by
strip: 16 rows one behind the other, which are columns there."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import unlikely, unroll
from kernels.cpu.compiler.vectors import i16x32
from kernels.cpu.isa.lanes import lowest_bit
from kernels.cpu.isa.sets.halves import (
    bits_of_halves,
    count_of,
    halves_of_bytes,
    halves_of_rows,
    load_i16x32,
    packed_bytes,
    reaches,
    store_i16x32,
)
from kernels.cpu.isa.simd import select
from kernels.cpu.isa.vectors import LANES, read_i64, read_u16, write_i64, write_u16
from kernels.cpu.matmul.compact.unpack import CODES, GROUP, NUM_CODES, STRIP_BYTES, WORDS
from kernels.cpu.matmul.records import CompactPackRecord
from kernels.cpu.runtime.work_split import VECTORS


def _exponents(halves: i16x32, base: int) -> i16x32:
    """Of 32 bfloat16, but for the last bit, less the base. Those of 1 .. NUM_CODES have codes; the others are
    rare, and as numbers without sign those below the base are large."""
    return (halves >> 8 & 0x7F) - i16x32(base)


def _count_rare(strip: int, words: int, base: int) -> int:
    """Of 16 rows at an address, one behind the other."""
    count = 0
    for k in range(words):
        exponents = _exponents(load_i16x32(strip + 4 * LANES * k), base)
        count += count_of(reaches(exponents - 1, NUM_CODES))
    return count


def _list_rare(word: int, row_bytes: int, bits: int, rare: int) -> int:
    """Writes to the list those numbers of a word of 16 rows whose bits are set. word: its address in the
    first row. Returns the list's end."""
    while unlikely(bits != 0):
        number = lowest_bit(bits)
        write_u16(rare, read_u16(word + number // 2 * row_bytes + number % 2 * 2))
        bits = bits & (bits - 1)
        rare += 2
    return rare


def _make_compact(strip: int, w: int, rare: int, groups: int, base: int) -> None:
    """16 rows become a strip of a compact weight. rare: address of its list."""
    row_bytes = 4 * WORDS * groups
    for group in range(groups):
        at, to = strip + 4 * WORDS * group, w + GROUP * group
        words = [halves_of_rows(at, row_bytes, place) for place in unroll(range(WORDS))]
        codes = [i16x32(0) for _ in unroll(range(WORDS))]
        for place in unroll(range(WORDS)):
            exponents = _exponents(words[place], base)
            is_rare = reaches(exponents - 1, NUM_CODES)
            codes[place] = select(is_rare, i16x32(0), exponents) | (words[place] >> 12 & 8)
            rare = _list_rare(at + 4 * place, row_bytes, bits_of_halves(is_rare), rare)
        store_i16x32(to, halves_of_bytes(packed_bytes(words[0] & 0xFF, words[1] & 0xFF)))
        store_i16x32(to + 64, halves_of_bytes(packed_bytes(words[2] & 0xFF, words[3] & 0xFF)))
        first = halves_of_bytes(packed_bytes(codes[0], codes[1]))
        store_i16x32(to + CODES, first | halves_of_bytes(packed_bytes(codes[2], codes[3])) << 4)


@operation
def count_rare(record: CompactPackRecord, first: int, count: int, thread: int) -> None:
    """Writes to the numbers how many halves of each strip are rare."""
    words, base = record.words, record.base
    for strip in range(first, first + count):
        at = record.rows_of_weight + strip * words * 4 * LANES
        write_i64(record.numbers + 8 * strip, _count_rare(at, words, base))


@operation
def make_compact(record: CompactPackRecord, first: int, count: int, thread: int) -> None:
    """Packs strips. The numbers are the addresses of the strips' lists, which are filled."""
    words, base, groups = record.words, record.base, record.words // WORDS
    for strip in range(first, first + count):
        to = record.weight + strip // VECTORS * groups * GROUP + strip % VECTORS * STRIP_BYTES
        at = record.rows_of_weight + strip * words * 4 * LANES
        _make_compact(at, to, read_i64(record.numbers + 8 * strip), groups, base)
