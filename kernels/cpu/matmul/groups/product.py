"""The product with a weight of 4 bits in groups (kernels.cpu.matmul.groups.weight).

    y[t, n] = b[n] + sum_g s[n, g] * u[t, g] * (sum_k p[n, k] * q[t, k] - z[n, g] * sum_k q[t, k])

A tile is some rows of x times 16 or 48 columns of the weight. The inner sums are int32 and exact; each group
is added to the tile's float32 sums with one rounding, in the order of groups, whatever the tile: a token's y
has the same bits with any other tokens. A word holds 8 values of k of a column, which two instructions take
apart for 16 columns. Where words hold codes of floats (kernels.cpu.matmul.groups.e2m1_product), one more
looks up their integers.

A group of 32 has eight products of four bytes for each sum, so what is done once for a group and sum counts:
the zero point's part, and two products of floats. Inner sums begin at the bits of BASE, a float32 whose last
bit is 1: so their bits are those of BASE + sum, and (BASE + sum) * s - BASE * s, rounded once, is s * sum.
BASE * s is exact; sums are below 2 ** 22, since a group has at most 128 inputs and |p - z| <= 64.

Of many rows, the words of a block are taken apart once (kernels.cpu.matmul.groups.many_rows). With two levels
of scales a group's sum is another one (kernels.cpu.matmul.groups.two_levels).
"""

from typing import Any

from kernels.cpu.compiler.cache import operation_for
from kernels.cpu.compiler.language import Static, unroll
from kernels.cpu.compiler.vectors import f32x16, i32x16
from kernels.cpu.isa.lanes import as_f32, multiply_small
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.simd import fma, load_f32, load_i32
from kernels.cpu.isa.vectors import LANES, read_f32, read_u32
from kernels.cpu.matmul.groups.many_rows import WIDE, multiply_many
from kernels.cpu.matmul.groups.two_levels import two_level_tile
from kernels.cpu.matmul.groups.vectors import (
    BASE,
    BASE_BITS,
    LINE,
    OFFSET_SHIFT,
    ONE_LEVEL,
    TWO_LEVELS,
    add_group,
    bytes_of_params,
    bytes_of_terms,
    params_of,
    result_of,
    scale_of,
)
from kernels.cpu.matmul.leaves import begin_leaf, end_leaf, first_written, writing_record
from kernels.cpu.matmul.records import GroupLinearRecord
from kernels.cpu.matmul.words import store_columns
from kernels.cpu.runtime.work_split import ROWS, VECTORS, following_block, last_block

MANY = 4
"""Of more rows than these, words are taken apart once."""
TILE_ROWS = 4
"""12 sums of integers and 12 of floats fill 32 registers."""


def _tile(
    rows: Static[int],
    vectors: Static[int],
    kind: Static[int],
    record: GroupLinearRecord,
    row: int,
    strip: int,
    w: int,
) -> None:
    """Rows of the result from `row` on, times columns of the strips from `strip` on. w: address of the first
    strip's words."""
    if kind == TWO_LEVELS:
        two_level_tile(rows, vectors, record, row, strip, w)
    else:
        _one_level_tile(rows, vectors, kind, record, row, strip, w)


def _one_level_tile(
    rows: Static[int],
    vectors: Static[int],
    kind: Static[int],
    record: GroupLinearRecord,
    row: int,
    strip: int,
    w: int,
) -> None:
    words, every = record.group_words, record.words // record.group_words
    groups, stride, term_stride = every >> record.depth, record.columns * record.out_bytes, 8 * every
    xs = [record.x + 8 * record.words * (row + m) for m in unroll(range(rows))]
    sums: list[Any] = [f32x16(0.0) for _ in unroll(range(rows * vectors))]
    column, x_terms = w + LINE * words, record.terms + term_stride * row
    for group in range(groups):
        totals: list[Any] = [
            multiply_small(
                load_i32(column + 64 * (i % vectors)) & 255,
                i32x16(read_u32(x_terms + term_stride * (i // vectors) + 4)) - BASE_BITS >> OFFSET_SHIFT,
            )
            + BASE_BITS
            for i in unroll(range(rows * vectors))
        ]
        add_group(rows, vectors, kind, totals, xs, 8 * words * group, column - LINE * words, words)
        for v in unroll(range(vectors)):
            scale = as_f32(load_i32(column + 64 * v) & -256)
            less = scale * -BASE
            for m in unroll(range(rows)):
                value = fma(as_f32(totals[vectors * m + v]), scale, less)
                unit = f32x16(read_f32(x_terms + term_stride * m))
                sums[vectors * m + v] = fma(value, unit, sums[vectors * m + v])
        column += LINE * (words + 1)
        x_terms += 8
    for v in unroll(range(vectors)):
        params = params_of(kind, record.params, strip + v)
        scale, bias = scale_of(kind, params), load_f32(params)
        out = record.out + row * stride + LANES * (strip + v) * record.out_bytes
        for m in unroll(range(rows)):
            left = record.columns - LANES * (strip + v)
            result = result_of(kind, sums[vectors * m + v], scale, bias)
            store_columns(out + stride * m, record.out_bytes, result, left)


def _multiply(
    vectors: Static[int],
    kind: Static[int],
    record: GroupLinearRecord,
    row: int,
    rows: int,
    strip: int,
    w: int,
) -> None:
    """So many rows, in tiles."""
    done = 0
    while rows - done >= TILE_ROWS:
        _tile(TILE_ROWS, vectors, kind, record, row + done, strip, w)
        done += TILE_ROWS
    if rows - done >= 2:
        _tile(2, vectors, kind, record, row + done, strip, w)
        done += 2
    if rows - done >= 1:
        _tile(1, vectors, kind, record, row + done, strip, w)


def _takes_apart_once(kind: Static[int], rows: int) -> bool:
    """Whether the words of a block are, for so many rows."""
    if kind == TWO_LEVELS and not OPERATIONS.nibbles.takes_bytes:
        return False
    return rows > MANY


def multiply_strips(
    kind: Static[int], record: GroupLinearRecord, first: int, count: int, thread: int
) -> None:
    """Units first .. first + count - 1: strips, within a chunk of rows."""
    strips, leaves = (record.columns + LANES - 1) // LANES, 1 << record.depth
    words, groups = record.words >> record.depth, record.words // record.group_words >> record.depth
    term_bytes, leaf_size = bytes_of_terms(kind, record.group_words), (words + groups) * LINE
    row, strip, end = first // strips * ROWS, first % strips, first % strips + count
    rows, last = min(record.rows - row, ROWS), last_block(strips, thread)
    to = writing_record(record, record.scratch, thread)
    while strip < end:
        block, inner = strip // VECTORS, strip % VECTORS
        is_whole = inner == 0 and (strip + VECTORS <= end or end == strips)
        taken = VECTORS if is_whole else 1
        for leaf in range(leaves):
            w = record.weight + (leaves * block + leaf) * leaf_size + 64 * inner
            begin_leaf(bytes_of_params(kind), record, to, block, leaf)
            target = GroupLinearRecord.at(to)
            to_row, to_strip = first_written(record, row, strip)
            if record.depth > 0:
                target.x = record.x + 8 * (record.words * row + words * leaf)
                target.terms = record.terms + term_bytes * groups * (leaves * row + leaf)
            if not is_whole:
                _multiply(1, kind, target, to_row, rows, to_strip, w)
            elif rows == 1:
                _tile(1, VECTORS, kind, target, to_row, to_strip, w)
            elif _takes_apart_once(kind, rows):
                soon = w + leaf_size
                if block == last and leaf == leaves - 1:
                    soon = following_block(record.following, thread, w)
                multiply_many(kind, target, to_row, rows, to_strip, w, soon, thread)
            else:
                for v in unroll(range(0, VECTORS, WIDE)):
                    _multiply(WIDE, kind, target, to_row, rows, to_strip + v, w + 64 * v)
            end_leaf(bytes_of_params(kind), record, to, row, rows, strip, taken, leaf)
        strip += taken


group_linear = operation_for(multiply_strips, ONE_LEVEL, suffix="_integers")
