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
from kernels.cpu.matmul.compact.tiles import (
    ALL,
    FIRST,
    IN_TURNS,
    REGISTER_ROWS,
    list_address,
    tile,
    unpack_strip,
)
from kernels.cpu.matmul.compact.unpack import CODES, GROUP, NUM_CODES, STRIP_BYTES, WORDS
from kernels.cpu.matmul.gemm import BLOCK, FEW_REGISTERS, STRIP, multiply_rows
from kernels.cpu.matmul.leaves import BIASES, begin_leaf, end_leaf, first_written, leaf_bytes, writing_record
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


def scratch_bytes(words: int, depth: int = 0) -> int:
    """What a thread needs: a block, unpacked, or what few registers need; behind it, the parts of inputs.
    depth: of the tree of leaves."""
    return leaf_bytes(depth) + max(block_bytes(words), SCRATCH_BYTES) + split_bytes(words)


def _multiply_strips(record: CompactLinearRecord, first: int, count: int, thread: int) -> None:
    """Units of a product, where registers are many."""
    columns, words, base = record.columns, record.words, record.base
    scratch = read_i64(record.scratch + 8 * thread) + leaf_bytes(record.depth)
    strips, groups, leaves = (columns + LANES - 1) // LANES, words // WORDS >> record.depth, 1 << record.depth
    row = first // strips * ROWS
    strip, end = first % strips, first % strips + count
    x, stride, rows = record.x + row * words * 4, words * PAIR_BYTES, min(record.rows - row, ROWS)
    if PAIR_PARTS > 1:
        x = split_inputs(PAIRS, x, rows, words, scratch + block_bytes(words))
    final, last, to = rows - 1, last_block(strips, thread), writing_record(record, record.scratch, thread)
    while strip < end:
        block, inner = strip // VECTORS, strip % VECTORS
        whole = inner == 0 and (strip + VECTORS <= end or end == strips)
        taken = VECTORS if whole else 1
        for leaf in range(leaves):
            number = leaves * block + leaf
            w_at = record.weight + number * groups * GROUP + inner * STRIP_BYTES
            x_at, list_at = x + leaf * groups * WORDS * PAIR_BYTES, list_address(record, strip, leaf)
            soon = w_at + groups * GROUP
            if block == last and leaf == leaves - 1:
                soon = following_block(record.following, thread, w_at)
            begin_leaf(BIASES, record, to, block, leaf)
            target = CompactLinearRecord.at(to)
            to_row, to_strip = first_written(record, row, strip)
            width, left = target.out_bytes, target.columns - LANES * to_strip
            out_stride = target.columns * width
            p_at = target.params + 64 * to_strip
            out_at = target.out + to_row * out_stride + to_strip * LANES * width
            if rows == 1 and not whole:
                tile(
                    *(1, 1),
                    *(x_at, stride, final, w_at, soon, list_at, base),
                    *(groups, 0, ALL, p_at, out_at, out_stride, left, width),
                )
            elif rows <= MOST_IN_REGISTERS and whole:
                for fewer, size in unroll(REGISTER_TILES):
                    if rows > fewer and rows <= size:
                        tile(
                            *(size, VECTORS),
                            *(x_at, stride, final, w_at, soon, list_at, base),
                            *(groups, 0, ALL, p_at, out_at, out_stride, left, width),
                        )
            elif whole:
                keeps = ALL if rows > FIRST else IN_TURNS
                tile(
                    *(FIRST, VECTORS),
                    *(x_at, stride, final, w_at, soon, list_at, base),
                    *(groups, scratch, keeps, p_at, out_at, out_stride, left, width),
                )
                if rows > FIRST:
                    others, at, first_row = rows - FIRST, x_at + FIRST * stride, to_row + FIRST
                    pieces = pieces_of_block(record.stream, number, groups * WORDS, others // 8 - SOON)
                    keys = PrefetchStream.at(record.stream).keys if pieces else 0
                    multiply_rows(
                        *(PAIRS, VECTORS, BLOCK, target, at, stride, scratch, first_row, others, to_strip, 0),
                        *(soon, SOON, pieces, keys),
                    )
            else:
                unpack_strip(w_at, list_at, base, groups, scratch)
                multiply_rows(
                    *(PAIRS, 1, STRIP, target, x_at, stride, scratch, to_row, rows, to_strip, 0),
                    *(scratch, 0, 0, 0),
                )
            end_leaf(BIASES, record, to, row, rows, strip, taken, leaf)
        strip += taken


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


def _count_rare(at: int, words: int, base: int) -> int:
    """Of so many words at an address, a multiple of 16."""
    count = 0
    for k in range(words // LANES):
        exponents = _exponents(load_i16x32(at + 4 * LANES * k), base)
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
    """Writes to the numbers how many halves of each leaf of each strip are rare."""
    words, base, leaves = record.words, record.base, 1 << record.depth
    for strip in range(first, first + count):
        at, numbers = record.rows_of_weight + strip * words * 4 * LANES, record.numbers + 8 * leaves * strip
        if leaves == 1:
            write_i64(numbers, _count_rare(at, LANES * words, base))
        else:
            for leaf in range(leaves):
                of_leaf = words >> record.depth
                rare = 0
                for row in range(LANES):
                    rare += _count_rare(at + 4 * (words * row + of_leaf * leaf), of_leaf, base)
                write_i64(numbers + 8 * leaf, rare)


@operation
def make_compact(record: CompactPackRecord, first: int, count: int, thread: int) -> None:
    """Packs strips. The numbers are the addresses of the lists of the strips' leaves, which are filled."""
    words, base, groups, leaves = record.words, record.base, record.words // WORDS, 1 << record.depth
    for strip in range(first, first + count):
        to = record.weight + strip // VECTORS * groups * GROUP + strip % VECTORS * STRIP_BYTES
        at = record.rows_of_weight + strip * words * 4 * LANES
        _make_compact(at, to, read_i64(record.numbers + 8 * leaves * strip), groups, base)
