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
    words, strips, scratch = (
        record.words,
        (record.columns + LANES - 1) // LANES,
        read_i64(record.scratch + 8 * thread),
    )
    row, strip, end = first // strips * ROWS, first % strips, first % strips + count
    rows, last, pitch = min(record.rows - row, ROWS), last_block(strips, thread), 4 * words
    x, at = record.x + pitch * row, -1
    while strip < end:
        block, inner = strip // VECTORS, strip % VECTORS
        w = record.weight + block * words * LINE // 2
        if block != at:
            _widen(w, words, scratch)
            at = block
        soon = following_block(record.following, thread, w) if block == last else w + words * LINE // 2
        if rows <= BLOCK_ROWS and inner == 0 and (strip + VECTORS <= end or end == strips):
            multiply_rows(
                *(FLOATS, VECTORS, BLOCK, record, x, pitch, scratch, row, rows, strip, 0), *(soon, SOON, 0, 0)
            )
            strip += VECTORS
        else:
            multiply_rows(
                *(FLOATS, 1, STRIP, record, x, pitch, scratch + 64 * inner, row, rows, strip, 0),
                *(soon, 0, 0, 0),
            )
            strip += 1


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


def scratch_bytes(words: int) -> int:
    """What a thread needs: a block of so many words of a column, widened."""
    return max(LINE * words, many_rows.SCRATCH_BYTES)
