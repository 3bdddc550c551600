"""The product with a weight of 4 bits in groups (kernels.cpu.matmul.groups.weight).

    y[t, n] = b[n] + sum_g s[n, g] * u[t, g] * (sum_k p[n, k] * q[t, k] - z[n, g] * sum_k q[t, k])

A tile is some rows of x times 16 or 48 columns of the weight. The inner sums are int32 and exact; each group
is added to the tile's float32 sums with one rounding, in the order of groups, whatever the tile: a token's y
has the same bits with any other tokens. A word holds 8 values of k of a column, which two instructions take
apart for 16 columns.

Of many rows, the words of a block are taken apart once, into a place that stays in the second-level cache.
"""

from typing import Any

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static, unroll
from kernels.cpu.compiler.vectors import f32x16, i32x16
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.simd import add_nibbles, fma, load_f32, load_i32, prefetch, store_i32, to_f32
from kernels.cpu.isa.vectors import LANES, read_f32, read_i64, read_u32
from kernels.cpu.matmul.gemm import store_columns
from kernels.cpu.matmul.groups.records import GroupLinearRecord
from kernels.cpu.matmul.groups.vectors import as_f32
from kernels.cpu.runtime.work_split import COLUMNS, ROWS, VECTORS

LOWER = 0x0F0F0F0F
"""Of a word, the lower 4 bits of each byte."""
LINE = 4 * COLUMNS
"""Bytes of a word of all columns of a block."""
AHEAD = 16 * LINE
"""Bytes between what one row multiplies with and what it prefetches."""
MANY = 8
"""Of more rows than these, words are taken apart once."""
TILE_ROWS = 4
WIDE = 1 if OPERATIONS.rereads_weights else VECTORS
"""Vectors of a tile of several rows: 12 sums of integers and 12 of floats fill 32 registers."""


def _weights(apart: Static[bool], at: int, part: Static[int]) -> i32x16:
    """Four of the eight values of 16 words, a byte each. at: address of the words, or of their two parts."""
    if apart:
        return load_i32(at + LINE * part)
    return (load_i32(at) >> (4 * part)) & LOWER


def _add_group(
    rows: Static[int],
    vectors: Static[int],
    apart: Static[bool],
    totals: list[Any],
    xs: list[Any],
    x_offset: int,
    w: int,
    words: int,
) -> None:
    """Adds the products of a group's words. w: their address, or that of their parts."""
    at, offset = w, x_offset
    for _ in range(words):
        for part in unroll(range(2)):
            weights = [_weights(apart, at + 64 * v, part) for v in unroll(range(vectors))]
            for m in unroll(range(rows)):
                value = i32x16(read_u32(xs[m] + offset + 4 * part))
                for v in unroll(range(vectors)):
                    totals[vectors * m + v] = add_nibbles(totals[vectors * m + v], weights[v], value)
        if not apart:
            for v in unroll(range(vectors)):
                prefetch(at + AHEAD + 64 * v)
        at += 2 * LINE if apart else LINE
        offset += 8


def _tile(
    rows: Static[int],
    vectors: Static[int],
    apart: Static[bool],
    record: GroupLinearRecord,
    row: int,
    strip: int,
    w: int,
    parts: int,
) -> None:
    """Rows of the result from `row` on, times columns of the strips from `strip` on. w: address of the first
    strip's words; parts: that of their parts, where they are taken apart."""
    words, groups = record.group_words, record.words // record.group_words
    stride, term_stride = record.columns * record.out_bytes, 8 * groups
    xs = [record.x + 8 * record.words * (row + m) for m in unroll(range(rows))]
    sums: list[Any] = [f32x16(0.0) for _ in unroll(range(rows * vectors))]
    column, source, x_terms = w + LINE * words, parts if apart else w, record.terms + term_stride * row
    for group in range(groups):
        totals: list[Any] = [
            (load_i32(column + 64 * (i % vectors)) & 255)
            * i32x16(read_u32(x_terms + term_stride * (i // vectors) + 4))
            for i in unroll(range(rows * vectors))
        ]
        _add_group(rows, vectors, apart, totals, xs, 8 * words * group, source, words)
        for v in unroll(range(vectors)):
            scale = as_f32(load_i32(column + 64 * v) & -256)
            for m in unroll(range(rows)):
                value = to_f32(totals[vectors * m + v]) * scale
                unit = f32x16(read_f32(x_terms + term_stride * m))
                sums[vectors * m + v] = fma(value, unit, sums[vectors * m + v])
        column += LINE * (words + 1)
        source += 2 * LINE * words if apart else LINE * (words + 1)
        x_terms += 8
    for v in unroll(range(vectors)):
        bias = load_f32(record.params + 64 * (strip + v))
        out = record.out + row * stride + LANES * (strip + v) * record.out_bytes
        for m in unroll(range(rows)):
            left = record.columns - LANES * (strip + v)
            store_columns(out + stride * m, record.out_bytes, sums[vectors * m + v] + bias, left)


def _multiply(
    vectors: Static[int],
    apart: Static[bool],
    record: GroupLinearRecord,
    row: int,
    rows: int,
    strip: int,
    w: int,
    parts: int,
) -> None:
    """So many rows, in tiles."""
    done = 0
    while rows - done >= TILE_ROWS:
        _tile(TILE_ROWS, vectors, apart, record, row + done, strip, w, parts)
        done += TILE_ROWS
    if rows - done >= 2:
        _tile(2, vectors, apart, record, row + done, strip, w, parts)
        done += 2
    if rows - done >= 1:
        _tile(1, vectors, apart, record, row + done, strip, w, parts)


def _take_apart(record: GroupLinearRecord, w: int, to: int) -> None:
    """Writes the parts of a block's words. w: address of the block."""
    for _ in range(record.words // record.group_words):
        for _ in range(record.group_words):
            for part in unroll(range(2)):
                for v in unroll(range(VECTORS)):
                    store_i32(to + LINE * part + 64 * v, _weights(False, w + 64 * v, part))
            w += LINE
            to += 2 * LINE
        w += LINE


def _multiply_block(record: GroupLinearRecord, row: int, rows: int, strip: int, w: int, thread: int) -> None:
    """All strips of a block, from `strip` on."""
    if rows == 1:
        _tile(1, VECTORS, False, record, row, strip, w, 0)
    elif rows <= MANY:
        for v in unroll(range(0, VECTORS, WIDE)):
            _multiply(WIDE, False, record, row, rows, strip + v, w + 64 * v, 0)
    else:
        parts = read_i64(record.scratch + 8 * thread)
        _take_apart(record, w, parts)
        for v in unroll(range(0, VECTORS, WIDE)):
            _multiply(WIDE, True, record, row, rows, strip + v, w + 64 * v, parts + 64 * v)


@operation
def group_linear(record: GroupLinearRecord, first: int, count: int, thread: int) -> None:
    """Units first .. first + count - 1: strips, within a chunk of rows."""
    strips = (record.columns + LANES - 1) // LANES
    block_bytes = (record.words + record.words // record.group_words) * LINE
    row, strip, end = first // strips * ROWS, first % strips, first % strips + count
    rows = min(record.rows - row, ROWS)
    while strip < end:
        w = record.weight + strip // VECTORS * block_bytes + 64 * (strip % VECTORS)
        if strip % VECTORS == 0 and (strip + VECTORS <= end or end == strips):
            _multiply_block(record, row, rows, strip, w, thread)
            strip += VECTORS
        else:
            _multiply(1, False, record, row, rows, strip, w, 0)
            strip += 1


def scratch_bytes(words: int) -> int:
    """What a thread needs: the parts of a block of so many words of a column."""
    return 2 * LINE * words
