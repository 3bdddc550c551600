"""The product of kernels.cpu.matmul.gemm on float32 values: inputs and weights are words as they are.

Each product is rounded once, with its sum, in the order of k, in the same tiles as those of bfloat16. So a
result does not depend on the number of rows either, and is the same with every instruction set.

With weights of float16 (kernels.cpu.matmul.packed) the product is the same, bit for bit. Where registers are
many, some rows widen the weights as they multiply. Many rows would widen a word once for each tile: for them
a block is widened first, into a place that stays in the second-level cache, and multiplied as float32.
"""

from kernels.cpu.compiler.cache import operation, operation_for
from kernels.cpu.compiler.language import unroll
from kernels.cpu.isa.narrow_words import load_halves, read_half
from kernels.cpu.isa.simd import store_i32
from kernels.cpu.isa.vectors import LANES, read_i64, write_u32
from kernels.cpu.matmul import many_rows
from kernels.cpu.matmul.gemm import BLOCK, BLOCK_ROWS, FEW_REGISTERS, STRIP, multiply_rows, multiply_strips
from kernels.cpu.matmul.leaves import begin_leaf, end_leaf, first_written, leaf_bytes, writing_record
from kernels.cpu.matmul.records import LinearRecord, PackedRowsRecord
from kernels.cpu.matmul.words import FLOATS, HALVES
from kernels.cpu.runtime.work_split import COLUMNS, ROWS, VECTORS, following_block, last_block

MANY = 16
"""From so many rows on, blocks are widened first."""
LINE = 4 * COLUMNS
"""Bytes of a word of all columns of a block, once they are float32."""
SOON = 1
"""Tiles of 8 rows in which a block's successor is prefetched."""

linear_float32 = operation_for(multiply_strips, FLOATS, suffix="_float32")


def _widen(w: int, words: int, to: int) -> None:
    """Writes a block as kernels.cpu.matmul.packed has it. w: address of the block."""
    for k in range(words):
        for v in unroll(range(VECTORS)):
            store_i32(to + LINE * k + 4 * LANES * v, load_halves(w + LINE // 2 * k + 2 * LANES * v))


def _multiply_widened(record: LinearRecord, first: int, count: int, thread: int) -> None:
    """As multiply_strips(), of many rows, where registers are many."""
    words, leaves = record.words >> record.depth, 1 << record.depth
    strips, scratch = (
        (record.columns + LANES - 1) // LANES,
        read_i64(record.scratch + 8 * thread) + leaf_bytes(record.depth),
    )
    row, strip, end = first // strips * ROWS, first % strips, first % strips + count
    rows, last, pitch = min(record.rows - row, ROWS), last_block(strips, thread), 4 * record.words
    x, at, to = record.x + pitch * row, -1, writing_record(record, record.scratch, thread)
    while strip < end:
        block, inner = strip // VECTORS, strip % VECTORS
        whole = rows <= BLOCK_ROWS and inner == 0 and (strip + VECTORS <= end or end == strips)
        taken = VECTORS if whole else 1
        for leaf in range(leaves):
            number, x_at = leaves * block + leaf, x + 4 * words * leaf
            w = record.weight + number * words * LINE // 2
            if number != at:
                _widen(w, words, scratch)
                at = number
            soon = w + words * LINE // 2
            if block == last and leaf == leaves - 1:
                soon = following_block(record.following, thread, w)
            begin_leaf(FLOATS.params_bytes, record, to, block, leaf)
            target = LinearRecord.at(to)
            to_row, to_strip = first_written(record, row, strip)
            if whole:
                multiply_rows(
                    *(FLOATS, VECTORS, BLOCK, target, x_at, pitch, scratch, to_row, rows, to_strip, 0),
                    *(soon, SOON, 0, 0),
                )
            else:
                multiply_rows(
                    *(FLOATS, 1, STRIP, target, x_at, pitch, scratch + 64 * inner, to_row, rows, to_strip, 0),
                    *(soon, 0, 0, 0),
                )
            end_leaf(FLOATS.params_bytes, record, to, row, rows, strip, taken, leaf)
        strip += taken


@operation
def linear_halves(record: LinearRecord, first: int, count: int, thread: int) -> None:
    """Units first .. first + count - 1: strips, within a chunk of rows."""
    strips = (record.columns + LANES - 1) // LANES
    rows = min(record.rows - first // strips * ROWS, ROWS)
    if FEW_REGISTERS:
        multiply_strips(HALVES, record, first, count, thread)
    elif rows >= MANY:
        _multiply_widened(record, first, count, thread)
    else:
        multiply_strips(HALVES, record, first, count, thread)


@operation
def rows_of_halves(record: PackedRowsRecord, first: int, count: int, thread: int) -> None:
    """Rows of a weight as they were, float32."""
    w, out, words = record.weight, record.out, record.words
    for row in range(first, first + count):
        index = read_i64(record.indexes + 8 * row)
        at = w + index // COLUMNS * words * 2 * COLUMNS + index % COLUMNS * 2
        for k in range(words):
            write_u32(out + 4 * (row * words + k), read_half(at + 2 * COLUMNS * k))


def scratch_bytes(words: int, depth: int = 0) -> int:
    """What a thread needs: a leaf of a block of so many words of a column, widened. depth: of the tree of
    leaves."""
    return leaf_bytes(depth) + max(LINE * words >> depth, many_rows.SCRATCH_BYTES)
