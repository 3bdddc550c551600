"""The product of a few rows with a packed weight (kernels.cpu.matmul.gemm) where registers are few.

A core that begins two products in a cycle, and has each sum after four, needs eight registers of sums at
least, and more to make up for what delays one. 16 registers hold twelve, beside weights and an input:

    3 or 4 rows    24 columns, half of a block     9 or 12 registers of sums
    5 or 6 rows    16 columns, a strip             10 or 12

More rows are tiles of these, as even as possible. A strip that is not taken with its block has tiles of 16
columns for any number of rows.

Of a block some words are multiplied at a time, with all rows, whose sums wait in memory until the next words
are: so inputs stay in the first-level cache, and weights are read in the order in which they lie in memory. A
row's products are added in the order in which a tile of gemm adds them, so that its results have the same
bits.
"""

from kernels.cpu.compiler.language import Static, unroll
from kernels.cpu.compiler.vectors import i32x8, i32x16
from kernels.cpu.isa.doubles import load_f32x8, store_f32x8
from kernels.cpu.isa.simd import load_f32, prefetch, reread, store_i32
from kernels.cpu.isa.vectors import LANES, read_i64, read_u32
from kernels.cpu.matmul.leaves import begin_leaf, end_leaf, first_written, leaf_bytes, writing_record
from kernels.cpu.matmul.many_rows import AT_ONCE, MANY
from kernels.cpu.matmul.records import LinearRecord
from kernels.cpu.matmul.words import Words, store_columns
from kernels.cpu.runtime.records import ProductRecord
from kernels.cpu.runtime.work_split import COLUMNS, VECTORS, following_block, last_block

LEAST, LARGEST = 3, 6
"""Rows of a tile."""
WIDE_ROWS = 4
"""The most rows that are multiplied with half of a block."""
EIGHT = 8
"""Columns of a vector here, which is one register of 256 bits."""
IN_STRIP, IN_HALF = LANES // EIGHT, COLUMNS // EIGHT // 2
"""Such vectors of a strip, and of half of a block."""
PIECE = 32 << 10
"""The most bytes of a block that are multiplied at a time."""
NEAR = 256
"""Numbers of a column between weights and those that are prefetched with them. With half as many, tiles of 3
to 6 rows wait for memory; with twice as many, what was prefetched is often gone again."""
SUMS_BYTES = 4 * COLUMNS
"""Of a row's sums."""


def _tile(
    kind: Static[Words],
    rows: Static[int],
    eights: Static[int],
    words: int,
    x: int,
    pitch: int,
    w: int,
    sums: int,
    ahead: int,
    step: int,
) -> None:
    """Adds products of so many words to the sums of some rows, in 8 * eights columns. ahead, step: what is
    prefetched with the first word, and bytes from there to what is with the next one."""
    x_rows = [reread(x + pitch * m) for m in unroll(range(rows))]
    places = [sums + SUMS_BYTES * (i // eights) + 32 * (i % eights) for i in unroll(range(rows * eights))]
    totals = [load_f32x8(places[i]) for i in unroll(range(rows * eights))]
    across = kind.size * COLUMNS
    for k in range(words):
        for line in unroll(range(0, EIGHT * kind.size * eights, 64)):
            prefetch(ahead + step * k + line)
        for part in unroll(range(kind.parts)):
            at, offset = reread(w) + across * k, 4 * (kind.parts * k + part)
            weights = [
                kind.weights(kind.load_eight(at + EIGHT * kind.size * v), part) for v in unroll(range(eights))
            ]
            for m in unroll(range(rows)):
                value = i32x8(read_u32(x_rows[m] + offset))
                for v in unroll(range(eights)):
                    totals[eights * m + v] = kind.add(totals[eights * m + v], weights[v], value)
    for i in unroll(range(rows * eights)):
        store_f32x8(places[i], totals[i])


def add_words(
    kind: Static[Words],
    strips: int,
    words: int,
    rows: int,
    x: int,
    pitch: int,
    w: int,
    sums: int,
    ahead: int,
) -> None:
    """Adds products of so many words to the sums of all rows, in so many strips, of a whole block or one.
    ahead: what is prefetched, as many bytes as these weights have. Of a block it is one byte after the other,
    in which order memory gives most."""
    strip_bytes, half_bytes, across = LANES * kind.size, COLUMNS * kind.size // 2, COLUMNS * kind.size
    tiles, done = (rows + LARGEST - 1) // LARGEST, 0
    for i in range(tiles):
        size = (rows - done + tiles - i - 1) // (tiles - i)
        x_at, sums_at = x + pitch * done, sums + SUMS_BYTES * done
        for each in unroll(range(LEAST, WIDE_ROWS + 1)):
            if size == each and strips == VECTORS:
                for half in range(2):
                    at, to = half_bytes * half, sums_at + SUMS_BYTES // 2 * half
                    _tile(
                        *(kind, each, IN_HALF, words, x_at, pitch, w + at, to),
                        *(ahead + at * words, half_bytes),
                    )
        for each in unroll(range(LEAST, LARGEST + 1)):
            if size == each and (each > WIDE_ROWS or strips < VECTORS):
                for v in range(strips):
                    at, to = strip_bytes * v, sums_at + 4 * LANES * v
                    _tile(
                        *(kind, each, IN_STRIP, words, x_at, pitch, w + at, to),
                        *(ahead + at * words, strip_bytes if strips == VECTORS else across),
                    )
        done += size


def clear_sums(rows: int, sums: int) -> None:
    """Writes zeros."""
    for i in range(VECTORS * rows):
        store_i32(sums + 4 * LANES * i, i32x16(0))


def write_results(record: ProductRecord, row: int, rows: int, strip: int, strips: int, sums: int) -> None:
    """Writes the results of so many strips, from `strip` on."""
    for v in range(strips):
        out = record.out + (row * record.columns + LANES * (strip + v)) * record.out_bytes
        bias, columns = load_f32(record.params + 64 * (strip + v)), record.columns - LANES * (strip + v)
        for m in range(rows):
            at, total = out + record.columns * record.out_bytes * m, sums + SUMS_BYTES * m + 4 * LANES * v
            store_columns(at, record.out_bytes, load_f32(total) + bias, columns)


def _multiply(
    kind: Static[Words],
    record: ProductRecord,
    x: int,
    pitch: int,
    w: int,
    row: int,
    rows: int,
    strip: int,
    strips: int,
    sums: int,
    soon: int,
) -> None:
    """Rows of x, from `row` of the result on, times so many strips: a whole block, or one. x, w: addresses of
    their first words; soon: of the block that comes next."""
    words, across = record.words >> record.depth, kind.size * COLUMNS
    pieces, near = (words * across + PIECE - 1) // PIECE, NEAR // kind.parts * across
    step = (words + pieces - 1) // pieces
    clear_sums(rows, sums)
    for first in range(0, words, step):
        at, left = w + across * first, across * (words - first)
        ahead = at + near if left > near else soon + near - left
        x_at = x + 4 * kind.parts * first
        add_words(kind, strips, min(step, words - first), rows, x_at, pitch, at, sums, ahead)
    write_results(record, row, rows, strip, strips, sums)


def multiply_few(
    kind: Static[Words],
    record: LinearRecord,
    x: int,
    pitch: int,
    row: int,
    rows: int,
    strip: int,
    end: int,
    thread: int,
) -> int:
    """LEAST rows of x or more, and fewer than MANY, from `row` of the result on, times strips up to `end`. x,
    pitch: see kernels.cpu.matmul.gemm.multiply_rows. Returns the first strip that is not multiplied: `strip`,
    where there are fewer rows or more."""
    if rows < LEAST or rows >= MANY:
        return strip
    words, size, leaves = record.words >> record.depth, LANES * kind.size, 1 << record.depth
    count = (record.columns + LANES - 1) // LANES
    memory = read_i64(record.scratch + 8 * thread) + leaf_bytes(record.depth)
    last, sums, to = (
        last_block(count, thread),
        memory + 64 * AT_ONCE,
        writing_record(record, record.scratch, thread),
    )
    while strip < end:
        block, inner = strip // VECTORS, strip % VECTORS
        whole = inner == 0 and (strip + VECTORS <= end or end == count)
        taken = VECTORS if whole else 1
        for leaf in range(leaves):
            w = record.weight + ((leaves * block + leaf) * words * VECTORS + inner) * size
            soon = w + words * VECTORS * size
            if block == last and leaf == leaves - 1:
                soon = following_block(record.following, thread, w)
            begin_leaf(kind.params_bytes, record, to, block, leaf)
            target = LinearRecord.at(to)
            to_row, to_strip = first_written(record, row, strip)
            x_at = x + 4 * kind.parts * words * leaf
            _multiply(kind, target, x_at, pitch, w, to_row, rows, to_strip, taken, sums, soon)
            end_leaf(kind.params_bytes, record, to, row, rows, strip, taken, leaf)
        strip += taken
    return end
