"""The product of many rows with a weight in groups (kernels.cpu.matmul.groups.product): tiles of a block
whose words are unpacked once for all rows.

Some groups of a block are multiplied at a time, as many as stay in the first-level cache once they are
unpacked, with all rows, whose float32 sums wait in memory until the next groups are. The first tile unpacks
while it multiplies, and leaves what the others read: of a group

    the two parts of its words, each of four bytes without sign: p - z + OFFSET,
    or with two levels of scales m * (p - z) + MIDDLE
    with one level s, and s * -BASE

So the zero point costs a row nothing: its inner sums begin at the bits of BASE less OFFSET * sum_k q[t, k],
the same for all columns (kernels.cpu.matmul.groups.inputs). They end as those of a row alone, and so do the
results.
"""

from typing import Any

from kernels.cpu.compiler.language import Static, unroll
from kernels.cpu.compiler.vectors import f32x16, i32x16
from kernels.cpu.isa.lanes import as_f32
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.simd import add_nibbles, fma, load_f32, load_i32, prefetch, store_f32, store_i32
from kernels.cpu.isa.vectors import LANES, read_f32, read_i64, read_u32
from kernels.cpu.matmul.groups.two_levels import level_bytes
from kernels.cpu.matmul.groups.vectors import (
    BASE,
    LINE,
    OFFSET,
    PART_WORDS,
    TWO_LEVELS,
    bytes_of_terms,
    integers_in,
    params_of,
    result_of,
    scale_of,
)
from kernels.cpu.matmul.leaves import leaf_bytes
from kernels.cpu.matmul.records import GroupLinearRecord
from kernels.cpu.matmul.words import store_columns
from kernels.cpu.runtime.work_split import ROWS, VECTORS

AT_ONCE = 24 << 10
"""Bytes of unpacked groups."""
WIDE = 1 if OPERATIONS.rereads_weights else VECTORS
"""Vectors of a tile."""
TILE_ROWS, REST = 4, (2, 1)
"""Rows of a tile, and of those behind it. 12 sums of integers, 12 of floats and three vectors of weights take
27 of 32 registers; 4 sums and a vector of two registers each 10 of 16, without those of floats."""
SMALLEST_WORDS = 2
"""Of a group with one level of scales."""


def unpacked_bytes(words: int) -> int:
    """Of a group of so many words."""
    return LINE * (2 * words + 2)


def scratch_bytes(words: int, depth: int = 0) -> int:
    """Returns what a thread needs: unpacked groups of so many words, and the sums of all rows and columns.
    depth: of the tree of leaves."""
    return leaf_bytes(depth) + max(AT_ONCE, unpacked_bytes(words)) + LINE * ROWS


def _bytes_of(kind: Static[int], word: i32x16, part: Static[int], last: i32x16) -> i32x16:
    """Four bytes without sign of each word. last: what stands behind the words of the group, with two levels
    shifted so that the part's byte comes first."""
    if kind == TWO_LEVELS:
        return level_bytes(word, part, last)
    add = i32x16(OFFSET) - (last & 255)
    add = add | add << 8
    return integers_in(kind, word, part) + (add | add << 16)


def _multiply_words(
    rows: Static[int],
    kind: Static[int],
    unpacks: Static[bool],
    totals: list[Any],
    xs: list[Any],
    lasts: list[Any],
    w: int,
    at: int,
) -> None:
    """Adds the products of a word of each column. w, at: addresses of the word and of its bytes."""
    words = [load_i32(w + 64 * v) for v in unroll(range(WIDE))]
    for part in unroll(range(2)):
        if unpacks:
            weights: list[Any] = [_bytes_of(kind, words[v], part, lasts[v]) for v in unroll(range(WIDE))]
            for v in unroll(range(WIDE)):
                store_i32(at + LINE * part + 64 * v, weights[v])
        else:
            weights = [load_i32(at + LINE * part + 64 * v) for v in unroll(range(WIDE))]
        for m in unroll(range(rows)):
            value = i32x16(read_u32(xs[m] + 4 * part))
            for v in unroll(range(WIDE)):
                totals[WIDE * m + v] = add_nibbles(totals[WIDE * m + v], weights[v], value)


def _tile(
    rows: Static[int],
    kind: Static[int],
    unpacks: Static[bool],
    record: GroupLinearRecord,
    row: int,
    first: int,
    groups: int,
    w: int,
    parts: int,
    sums: int,
    soon: int,
    lines: int,
) -> None:
    """Adds so many groups from `first` on to the sums of rows from `row` on. w: address of the first group's
    words; parts: of what is unpacked, or is to be. With each group so many lines are prefetched, from `soon`
    on.
    """
    words, every = record.group_words, record.words // record.group_words
    term_bytes = bytes_of_terms(kind, words)
    xs = [record.x + 8 * (record.words * (row + m) + words * first) for m in unroll(range(rows))]
    terms = [record.terms + term_bytes * (every * (row + m) + first) for m in unroll(range(rows))]
    places = [sums + LINE * (i // WIDE) + 64 * (i % WIDE) for i in unroll(range(rows * WIDE))]
    held: list[Any] = [load_f32(places[i]) for i in unroll(range(rows * WIDE))]
    at, line = parts, soon
    for _ in range(groups):
        begin = [i32x16(read_u32(terms[m] + 4)) for m in unroll(range(rows))]
        totals: list[Any] = [begin[i // WIDE] for i in unroll(range(rows * WIDE))]
        lasts: list[Any] = [load_i32(w + LINE * words + 64 * v) for v in unroll(range(WIDE))]
        for _ in range(words // (PART_WORDS if kind == TWO_LEVELS else SMALLEST_WORDS)):
            for _ in unroll(range(PART_WORDS if kind == TWO_LEVELS else SMALLEST_WORDS)):
                _multiply_words(rows, kind, unpacks, totals, xs, lasts, w, at)
                w += LINE
                at += 2 * LINE
                for m in unroll(range(rows)):
                    xs[m] = xs[m] + 8
            if kind == TWO_LEVELS and unpacks:
                for v in unroll(range(WIDE)):
                    lasts[v] = lasts[v] >> 8
        if kind != TWO_LEVELS and unpacks:
            for v in unroll(range(WIDE)):
                scale = as_f32(lasts[v] & -256)
                store_f32(at + 64 * v, scale)
                store_f32(at + LINE + 64 * v, scale * -BASE)
        for i in unroll(range(rows * WIDE)):
            scaled = _scaled(kind, as_f32(totals[i]), at + 64 * (i % WIDE))
            held[i] = fma(scaled, f32x16(read_f32(terms[i // WIDE])), held[i])
        for m in unroll(range(rows)):
            terms[m] = terms[m] + term_bytes
        for number in range(lines):
            prefetch(line + 64 * number)
        line += LINE * (words + 1)
        w += LINE
        at += 2 * LINE
    for i in unroll(range(rows * WIDE)):
        store_f32(places[i], held[i])


def _scaled(kind: Static[int], total: f32x16, scales: int) -> f32x16:
    """The sum of a group times its scale. total: BASE + the sum; scales: address of the scale."""
    if kind == TWO_LEVELS:
        return total - BASE
    return fma(total, load_f32(scales), load_f32(scales + LINE))


def _add_groups(
    kind: Static[int],
    record: GroupLinearRecord,
    row: int,
    rows: int,
    first: int,
    groups: int,
    w: int,
    parts: int,
    sums: int,
    soon: int,
) -> None:
    """Adds some groups to so many rows, in tiles. All but the first one, which has enough to do, share what
    is prefetched, from `soon` on."""
    tiles, lines = rows // TILE_ROWS, WIDE * (record.group_words + 1)
    share = (lines + max(tiles - 2, 0)) // max(tiles - 1, 1)
    count = share if tiles == 1 else 0
    _tile(TILE_ROWS, kind, True, record, row, first, groups, w, parts, sums, soon, count)
    done, line = TILE_ROWS, soon
    while rows - done >= TILE_ROWS:
        to, count = sums + LINE * done, max(0, min(share, lines))
        _tile(TILE_ROWS, kind, False, record, row + done, first, groups, w, parts, to, line, count)
        done += TILE_ROWS
        lines -= share
        line += 64 * share
    for size in unroll(REST):
        if rows - done >= size:
            to = sums + LINE * done
            _tile(size, kind, False, record, row + done, first, groups, w, parts, to, soon, 0)
            done += size


def _finish(kind: Static[int], record: GroupLinearRecord, row: int, rows: int, strip: int, sums: int) -> None:
    """Writes the results of a block."""
    at, stride = record.out + LANES * strip * record.out_bytes, record.columns * record.out_bytes
    params = [params_of(kind, record.params, strip + v) for v in unroll(range(VECTORS))]
    biases = [load_f32(params[v]) for v in unroll(range(VECTORS))]
    scales = [scale_of(kind, params[v]) for v in unroll(range(VECTORS))]
    for m in range(rows):
        for v in unroll(range(VECTORS)):
            place, left = at + stride * (row + m), record.columns - LANES * (strip + v)
            result = result_of(kind, load_f32(sums + LINE * m + 64 * v), scales[v], biases[v])
            store_columns(place + LANES * v * record.out_bytes, record.out_bytes, result, left)


def multiply_many(
    kind: Static[int],
    record: GroupLinearRecord,
    row: int,
    rows: int,
    strip: int,
    w: int,
    soon: int,
    thread: int,
) -> None:
    """All strips of a block, from `strip` on, of TILE_ROWS and more rows. w: address of the block; soon: that
    of the next block, of which tiles prefetch what lies at the place of their own groups."""
    words, every = record.group_words, record.words // record.group_words >> record.depth
    parts = read_i64(record.scratch + 8 * thread) + leaf_bytes(record.depth)
    sums, most = parts + max(AT_ONCE, unpacked_bytes(words)), max(1, AT_ONCE // unpacked_bytes(words))
    for i in range(VECTORS * rows):
        store_f32(sums + 64 * i, f32x16(0.0))
    for first in range(0, every, most):
        groups, distance = min(most, every - first), LINE * (words + 1) * first
        for v in unroll(range(0, VECTORS, WIDE)):
            at, begin, next_at = 64 * v, w + distance + 64 * v, soon + distance + 64 * (words + 1) * v
            _add_groups(kind, record, row, rows, first, groups, begin, parts + at, sums + at, next_at)
    _finish(kind, record, row, rows, strip, sums)
