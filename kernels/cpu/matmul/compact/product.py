"""The product of kernels.cpu.matmul.compact.weight: weights are read in 12 bits, and computed with
in the 16 that they are. They are packed from rows of bfloat16 as checkpoints have them, strip by strip: 16
rows one behind the other, which become columns.

Up to eight rows multiply as they unpack (kernels.cpu.matmul.compact.tiles), while memory delivers the next
weights. More than eight are multiplied as kernels.cpu.matmul.gemm does it, with a block that the first eight
have unpacked, into a place that stays in the second-level cache. Where registers are few, see
kernels.cpu.matmul.compact.few_registers.
"""

from itertools import pairwise

from kernels.cpu.attention.planning.kv_prefetch_kernel import pieces_of_block
from kernels.cpu.attention.records import PrefetchStream
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
from kernels.cpu.isa.simd import PAIR_PARTS, select
from kernels.cpu.isa.vectors import LANES, read_i64, read_u16, read_u32, write_i64, write_u16, write_u32
from kernels.cpu.matmul.compact.few_registers import multiply_strips
from kernels.cpu.matmul.compact.tiles import ALL, FIRST, IN_TURNS, REGISTER_ROWS, tile, unpack_strip
from kernels.cpu.matmul.compact.unpack import CODES, GROUP, NUM_CODES, STRIP_BYTES, WORDS
from kernels.cpu.matmul.gemm import BLOCK, FEW_REGISTERS, STRIP, multiply_rows
from kernels.cpu.matmul.many_rows import SCRATCH_BYTES
from kernels.cpu.matmul.records import CompactLinearRecord, CompactPackRecord, CompactRowsRecord
from kernels.cpu.matmul.words import PAIR_BYTES, PAIRS, split_bytes, split_inputs
from kernels.cpu.runtime.work_split import COLUMNS, ROWS, VECTORS, following_block, last_block

REGISTER_TILES = tuple(pairwise((0, *REGISTER_ROWS)))
"""Of each tile that multiplies in registers: how many rows are too few for it, and its own."""
MOST_IN_REGISTERS = REGISTER_ROWS[-1]
SOON = 1
"""Tiles of 8 rows, behind the first, in which a block's successor is asked for: 12 bits need fewer."""


def block_bytes(words: int) -> int:
    """Of a block as kernels.cpu.matmul.packed packs it."""
    return 4 * COLUMNS * words


def scratch_bytes(words: int) -> int:
    """What a thread needs: a block, unpacked, or what few registers need; behind it, the parts of inputs."""
    return max(block_bytes(words), SCRATCH_BYTES) + split_bytes(words)


def _multiply_strips(record: CompactLinearRecord, first: int, count: int, thread: int) -> None:
    """Units of a product, where registers are many."""
    rows, x, w, params, out = record.rows, record.x, record.weight, record.params, record.out
    columns, words, width, following = record.columns, record.words, record.out_bytes, record.following
    stream, lists, base = record.stream, record.lists, record.base
    scratch = read_i64(record.scratch + 8 * thread)
    strips, groups = (columns + LANES - 1) // LANES, words // WORDS
    row = first // strips * ROWS
    strip, end = first % strips, first % strips + count
    x, out = x + row * words * 4, out + row * columns * width
    rows, stride, out_stride = min(rows - row, ROWS), words * PAIR_BYTES, columns * width
    if PAIR_PARTS > 1:
        x = split_inputs(PAIRS, x, rows, words, scratch + block_bytes(words))
    final, last = rows - 1, last_block(strips, thread)
    while strip < end:
        block, inner = strip // VECTORS, strip % VECTORS
        w_at = w + block * groups * GROUP + inner * STRIP_BYTES
        p_at, out_at = params + 64 * strip, out + strip * LANES * width
        list_at, left = lists + 8 * strip, columns - strip * LANES
        soon = following_block(following, thread, w_at) if block == last else w_at + groups * GROUP
        whole = inner == 0 and (strip + VECTORS <= end or end == strips)
        if rows == 1 and not whole:
            tile(
                *(1, 1),
                *(x, stride, final, w_at, soon, list_at, base),
                *(groups, 0, ALL, p_at, out_at, out_stride, left, width),
            )
        elif rows <= MOST_IN_REGISTERS and whole:
            for fewer, size in unroll(REGISTER_TILES):
                if rows > fewer and rows <= size:
                    tile(
                        *(size, VECTORS),
                        *(x, stride, final, w_at, soon, list_at, base),
                        *(groups, 0, ALL, p_at, out_at, out_stride, left, width),
                    )
        elif whole:
            keeps = ALL if rows > FIRST else IN_TURNS
            tile(
                *(FIRST, VECTORS),
                *(x, stride, final, w_at, soon, list_at, base),
                *(groups, scratch, keeps, p_at, out_at, out_stride, left, width),
            )
            if rows > FIRST:
                others, at = rows - FIRST, x + FIRST * stride
                pieces = pieces_of_block(stream, block, words, others // 8 - SOON)
                keys = PrefetchStream.at(stream).keys if pieces else 0
                multiply_rows(
                    *(PAIRS, VECTORS, BLOCK, record, at, stride, scratch, row + FIRST, others, strip, 0),
                    *(soon, SOON, pieces, keys),
                )
        else:
            unpack_strip(w_at, list_at, base, groups, scratch)
            multiply_rows(
                *(PAIRS, 1, STRIP, record, x, stride, scratch, row, rows, strip, 0), *(scratch, 0, 0, 0)
            )
        strip += VECTORS if whole else 1


@operation
def compact_linear(record: CompactLinearRecord, first: int, count: int, thread: int) -> None:
    """Units first .. first + count - 1, as kernels.cpu.matmul.gemm_bfloat16.linear_bfloat16."""
    if FEW_REGISTERS:
        multiply_strips(record, first, count, thread)
    else:
        _multiply_strips(record, first, count, thread)


@operation
def compact_rows(record: CompactRowsRecord, first: int, count: int, thread: int) -> None:
    """Rows of a weight as they were."""
    w, out, words = record.weight, record.out, record.words
    lists, base, scratch = record.lists, record.base, read_i64(record.scratch + 8 * thread)
    groups = words // WORDS
    for row in range(first, first + count):
        index = read_i64(record.indexes + 8 * row)
        strip = index // LANES
        at = w + strip // VECTORS * groups * GROUP + strip % VECTORS * STRIP_BYTES
        unpack_strip(at, lists + 8 * strip, base, groups, scratch)
        for k in range(words):
            write_u32(out + 4 * (row * words + k), read_u32(scratch + 4 * COLUMNS * k + 4 * (index % LANES)))


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
