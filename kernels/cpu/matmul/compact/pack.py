"""Makes weights of kernels.cpu.matmul.compact.weight from packed ones (kernels.cpu.matmul.packed), strip by
strip."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import unlikely, unroll
from kernels.cpu.compiler.vectors import i16x32
from kernels.cpu.isa.lanes import lowest_bit
from kernels.cpu.isa.sets.halves import (
    bits_of_halves,
    count_of,
    halves_of_bytes,
    load_i16x32,
    packed_bytes,
    reaches,
    store_i16x32,
)
from kernels.cpu.isa.simd import select
from kernels.cpu.isa.vectors import LANES, read_i64, read_u16, write_i64, write_u16
from kernels.cpu.matmul.compact.records import CompactPackRecord
from kernels.cpu.matmul.compact.unpack import CODES, GROUP, NUM_CODES, STRIP_BYTES, WORDS
from kernels.cpu.runtime.work_split import COLUMNS, VECTORS


def _exponents(halves: i16x32, base: int) -> i16x32:
    """Of 32 bfloat16, but for the last bit, less the base. Those of 1 .. NUM_CODES have codes; the others are
    rare, and as numbers without sign those below the base are large."""
    return (halves >> 8 & 0x7F) - i16x32(base)


def _count_rare(pairs: int, words: int, base: int) -> int:
    """Of a strip of a packed weight."""
    count = 0
    for k in range(words):
        exponents = _exponents(load_i16x32(pairs + 4 * COLUMNS * k), base)
        count += count_of(reaches(exponents - 1, NUM_CODES))
    return count


def _list_rare(halves: int, bits: int, rare: int) -> int:
    """Writes those of 32 numbers at an address whose bits are set to the list. Returns the list's end."""
    while unlikely(bits != 0):
        write_u16(rare, read_u16(halves + 2 * lowest_bit(bits)))
        bits = bits & (bits - 1)
        rare += 2
    return rare


def _make_compact(pairs: int, w: int, rare: int, groups: int, base: int) -> None:
    """A strip of a packed weight becomes one of a compact weight. rare: address of its list."""
    for group in range(groups):
        at, to = pairs + WORDS * 4 * COLUMNS * group, w + GROUP * group
        lower = [load_i16x32(at + 4 * COLUMNS * place) & 0xFF for place in unroll(range(WORDS))]
        codes = [i16x32(0) for _ in unroll(range(WORDS))]
        for place in unroll(range(WORDS)):
            halves = load_i16x32(at + 4 * COLUMNS * place)
            exponents = _exponents(halves, base)
            is_rare = reaches(exponents - 1, NUM_CODES)
            codes[place] = select(is_rare, i16x32(0), exponents) | (halves >> 12 & 8)
            rare = _list_rare(at + 4 * COLUMNS * place, bits_of_halves(is_rare), rare)
        store_i16x32(to, halves_of_bytes(packed_bytes(lower[0], lower[1])))
        store_i16x32(to + 64, halves_of_bytes(packed_bytes(lower[2], lower[3])))
        first = halves_of_bytes(packed_bytes(codes[0], codes[1]))
        store_i16x32(to + CODES, first | halves_of_bytes(packed_bytes(codes[2], codes[3])) << 4)


def _packed_strip_at(pairs: int, strip: int, words: int) -> int:
    """Address, in a weight of kernels.cpu.matmul.packed."""
    return pairs + strip // VECTORS * words * 4 * COLUMNS + strip % VECTORS * 4 * LANES


@operation
def count_rare(record: CompactPackRecord, first: int, count: int, thread: int) -> None:
    """Writes to the numbers how many halves of each strip are rare."""
    words, base = record.words, record.base
    for strip in range(first, first + count):
        at = _packed_strip_at(record.pairs, strip, words)
        write_i64(record.numbers + 8 * strip, _count_rare(at, words, base))


@operation
def make_compact(record: CompactPackRecord, first: int, count: int, thread: int) -> None:
    """Packs strips. The numbers are the addresses of the strips' lists, which are filled."""
    words, base, groups = record.words, record.base, record.words // WORDS
    for strip in range(first, first + count):
        to = record.weight + strip // VECTORS * groups * GROUP + strip % VECTORS * STRIP_BYTES
        at = _packed_strip_at(record.pairs, strip, words)
        _make_compact(at, to, read_i64(record.numbers + 8 * strip), groups, base)
