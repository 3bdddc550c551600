"""The product of many rows with a packed weight (kernels.cpu.matmul.gemm) where registers are few: in strips
of 16 columns.

Of a strip some words are multiplied at a time, with all rows, whose sums wait in memory until the next words
are. The first tile makes the parts of the weights' words as it multiplies, and leaves them in the first-level
cache, side by side; the other tiles, which would make them once more each, read them there:

    first tile     words of weights -> parts, in memory        6 rows of sums
    others         parts                                       6 or 5 rows of sums, in turns

A tile of 6 rows and 16 columns has its sums in 12 registers of 16; one of 4 or fewer rows would wait for its
own sums. A row's products are added in the order in which a tile of gemm adds them, so that its results have
the same bits.
"""

from typing import Any

from kernels.cpu.compiler.language import Static, unroll
from kernels.cpu.compiler.vectors import i32x16
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.simd import load_f32, load_i32, prefetch, reread, store_f32, store_i32
from kernels.cpu.isa.vectors import LANES, read_f32, read_i64, read_u32
from kernels.cpu.matmul.leaves import begin_leaf, end_leaf, first_written, leaf_bytes, writing_record
from kernels.cpu.matmul.records import LinearRecord
from kernels.cpu.matmul.words import Words, dequantized, store_columns
from kernels.cpu.runtime.records import ProductRecord
from kernels.cpu.runtime.work_split import COLUMNS, ROWS, VECTORS, following_block, last_block

TILE = 6
"""Rows of a tile; of the last ones, as many as are needed to come out even, one less."""
MANY = 26
"""From so many rows on, these tiles suffice for any number, and the first one has TILE."""
AT_ONCE = 256
"""Vectors of parts of weights: half of a first-level cache of 32 KiB."""
SCRATCH_BYTES = 64 * (AT_ONCE + ROWS) if OPERATIONS.rereads_weights else 0
"""What a thread needs: these, and sums."""


def _tile(
    kind: Static[Words],
    rows: Static[int],
    makes: Static[bool],
    words: int,
    x: int,
    pitch: int,
    w: int,
    parts: int,
    sums: int,
    soon: int,
) -> None:
    """Adds products of so many words to the sums of some rows. makes: the parts of weights, which lie at
    `parts` else. With each word a line is prefetched then, from `soon` on."""
    x_rows = [reread(x + pitch * m) for m in unroll(range(rows))]
    if kind.integers:
        totals: list[Any] = [load_i32(sums + 64 * m) for m in unroll(range(rows))]
    else:
        totals = [load_f32(sums + 64 * m) for m in unroll(range(rows))]
    across = kind.size * COLUMNS
    for k in range(words):
        if makes:
            prefetch(soon + across * k)
        for part in unroll(range(kind.parts)):
            at = kind.parts * k + part
            if makes:
                weight = kind.weights(kind.load(reread(w) + across * k), part)
                store_i32(parts + 64 * at, weight)
            else:
                weight = load_i32(parts + 64 * at)
            for m in unroll(range(rows)):
                totals[m] = kind.add(totals[m], weight, i32x16(read_u32(x_rows[m] + 4 * at)))
    for m in unroll(range(rows)):
        if kind.integers:
            store_i32(sums + 64 * m, totals[m])
        else:
            store_f32(sums + 64 * m, totals[m])


def _add_words(
    kind: Static[Words],
    words: int,
    rows: int,
    x: int,
    pitch: int,
    w: int,
    parts: int,
    sums: int,
    soon: int,
) -> None:
    """Adds products of so many words to the sums of all rows."""
    large = (rows - (TILE - 1) * (-rows % TILE)) // TILE
    _tile(kind, TILE, True, words, x, pitch, w, parts, sums, soon)
    for i in range(1, large):
        at = TILE * i
        _tile(kind, TILE, False, words, x + pitch * at, pitch, w, parts, sums + 64 * at, 0)
    for i in range(-rows % TILE):
        at = TILE * large + (TILE - 1) * i
        _tile(kind, TILE - 1, False, words, x + pitch * at, pitch, w, parts, sums + 64 * at, 0)


def write_strip(
    kind: Static[Words], record: ProductRecord, row: int, rows: int, strip: int, sums: int, scales: int
) -> None:
    """Writes the results of a strip. scales: of the first row."""
    out = record.out + (row * record.columns + LANES * strip) * record.out_bytes
    plane, columns = record.params + kind.params_bytes * strip, record.columns - LANES * strip
    for m in range(rows):
        if kind.integers:
            result = dequantized(load_i32(sums + 64 * m), plane, read_f32(scales + (4 << record.depth) * m))
        else:
            result = load_f32(sums + 64 * m)
        at = out + record.columns * record.out_bytes * m
        store_columns(at, record.out_bytes, result + load_f32(plane), columns)


def _multiply_strip(
    kind: Static[Words], rows: int, words: int, x: int, pitch: int, w: int, parts: int, sums: int, soon: int
) -> None:
    """The sums of all rows. w: address of the strip; soon: of the one that comes next, which is prefetched
    with the last words."""
    across, pieces = kind.size * COLUMNS, (words * kind.parts + AT_ONCE - 1) // AT_ONCE
    step = (words + pieces - 1) // pieces
    for m in range(rows):
        store_i32(sums + 64 * m, i32x16(0))
    for first in range(0, words, step):
        some, at = min(step, words - first), w + across * first
        following = soon if first + some == words else at + across * some
        _add_words(kind, some, rows, x + 4 * kind.parts * first, pitch, at, parts, sums, following)


def multiply_many(
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
    """MANY rows of x or more, from `row` of the result on, times strips up to `end`. x, pitch: see
    kernels.cpu.matmul.gemm.multiply_rows. Returns the first strip that is not multiplied: `strip`, where
    there are fewer rows."""
    if rows < MANY:
        return strip
    words, size, leaves = record.words >> record.depth, LANES * kind.size, 1 << record.depth
    last, leaf_size = last_block((record.columns + LANES - 1) // LANES, thread), words * VECTORS * size
    parts = read_i64(record.scratch + 8 * thread) + leaf_bytes(record.depth)
    sums, to = parts + 64 * AT_ONCE, writing_record(record, record.scratch, thread)
    for each in range(strip, end):
        block, inner = each // VECTORS, each % VECTORS
        for leaf in range(leaves):
            w = record.weight + (leaves * block + leaf) * leaf_size + inner * size
            soon = w + leaf_size
            if leaf == leaves - 1:
                soon = w + size - leaf * leaf_size
                if inner == VECTORS - 1:
                    soon = w + leaf_size - inner * size
                    if block == last:
                        soon = following_block(record.following, thread, w)
            begin_leaf(kind.params_bytes, record, to, block, leaf)
            target = LinearRecord.at(to)
            to_row, to_strip = first_written(record, row, each)
            _multiply_strip(kind, rows, words, x + 4 * kind.parts * words * leaf, pitch, w, parts, sums, soon)
            scales = record.scales + 4 * (leaves * row + leaf)
            write_strip(kind, target, to_row, rows, to_strip, sums, scales)
            end_leaf(kind.params_bytes, record, to, row, rows, each, 1, leaf)
    return end
