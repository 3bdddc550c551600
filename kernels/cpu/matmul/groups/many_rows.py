"""The product of many rows with a weight in groups (kernels.cpu.matmul.groups.product): tiles of a block
whose words are unpacked once for all rows.

Some groups of a block are unpacked at a time, as many as stay in the first-level cache, and multiplied with
all rows, whose float32 sums wait in memory until the next groups are. Of a group lie there:

    the two parts of its words, each of four bytes p - z + OFFSET
    s, and s * -BASE

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
from kernels.cpu.matmul.groups.records import GroupLinearRecord
from kernels.cpu.matmul.groups.vectors import BASE, OFFSET, integers_in
from kernels.cpu.matmul.results import store_columns
from kernels.cpu.runtime.work_split import COLUMNS, ROWS, VECTORS

LINE = 4 * COLUMNS
"""Bytes of a word of all columns of a block."""
AT_ONCE = 24 << 10
"""Bytes of unpacked groups."""
WIDE, TILE_ROWS, REST = (1, 4, (2, 1)) if OPERATIONS.rereads_weights else (VECTORS, 8, (4, 2, 1))
"""Vectors and rows of a tile, and rows of those behind it. 24 sums of integers and three vectors of weights
take 27 of 32 registers, 4 sums and a vector of two registers each 10 of 16."""


def unpacked_bytes(words: int) -> int:
    """Of a group of so many words."""
    return LINE * (2 * words + 2)


def scratch_bytes(words: int) -> int:
    """Returns what a thread needs: unpacked groups of so many words, and the sums of all rows and columns."""
    return max(AT_ONCE, unpacked_bytes(words)) + LINE * ROWS


def _unpack(e2m1: Static[bool], words: int, groups: int, w: int, to: int) -> None:
    """Some groups of a block. w: address of the first one."""
    for _ in range(groups):
        column = w + LINE * words
        for v in unroll(range(VECTORS)):
            last, at, part = load_i32(column + 64 * v), w + 64 * v, to + 64 * v
            add = i32x16(OFFSET) - (last & 255)
            add = add | add << 8
            add = add | add << 16
            for _ in range(words):
                word = load_i32(at)
                store_i32(part, integers_in(e2m1, word, 0) + add)
                store_i32(part + LINE, integers_in(e2m1, word, 1) + add)
                at += LINE
                part += 2 * LINE
            scale = as_f32(last & -256)
            store_f32(part, scale)
            store_f32(part + LINE, scale * -BASE)
        w += LINE * (words + 1)
        to += unpacked_bytes(words)


def _tile(
    rows: Static[int],
    record: GroupLinearRecord,
    row: int,
    first: int,
    groups: int,
    parts: int,
    sums: int,
    soon: int,
    step: int,
) -> None:
    """Adds so many groups from `first` on, which are unpacked at `parts`, to the sums of rows from `row` on.
    With each word a line is prefetched, from `soon` on, `step` bytes apart."""
    words, every = record.group_words, record.words // record.group_words
    xs = [record.x + 8 * (record.words * (row + m) + words * first) for m in unroll(range(rows))]
    terms = [record.terms + 8 * (every * (row + m) + first) for m in unroll(range(rows))]
    at, offset, line = parts, 0, soon
    for group in range(groups):
        begin = [i32x16(read_u32(terms[m] + 8 * group + 4)) for m in unroll(range(rows))]
        totals: list[Any] = [begin[i // WIDE] for i in unroll(range(rows * WIDE))]
        for _ in range(words):
            for part in unroll(range(2)):
                weights = [load_i32(at + LINE * part + 64 * v) for v in unroll(range(WIDE))]
                for m in unroll(range(rows)):
                    value = i32x16(read_u32(xs[m] + offset + 4 * part))
                    for v in unroll(range(WIDE)):
                        totals[WIDE * m + v] = add_nibbles(totals[WIDE * m + v], weights[v], value)
            prefetch(line)
            line += step
            at += 2 * LINE
            offset += 8
        prefetch(line)
        line += step
        for v in unroll(range(WIDE)):
            scale, less = load_f32(at + 64 * v), load_f32(at + LINE + 64 * v)
            for m in unroll(range(rows)):
                unit, place = f32x16(read_f32(terms[m] + 8 * group)), sums + LINE * m + 64 * v
                scaled = fma(as_f32(totals[WIDE * m + v]), scale, less)
                store_f32(place, fma(scaled, unit, load_f32(place)))
        at += 2 * LINE


def _add_groups(
    record: GroupLinearRecord,
    row: int,
    rows: int,
    first: int,
    groups: int,
    parts: int,
    sums: int,
    soon: int,
) -> None:
    """Adds some groups to so many rows, in tiles, each of the first of which prefetches a strip from `soon`
    on."""
    done, line, step = 0, soon, LINE
    while rows - done >= TILE_ROWS:
        _tile(TILE_ROWS, record, row + done, first, groups, parts, sums + LINE * done, line, step)
        done += TILE_ROWS
        line += 64
        if done >= WIDE * TILE_ROWS:
            line, step = parts, 0
    for size in unroll(REST):
        if rows - done >= size:
            _tile(size, record, row + done, first, groups, parts, sums + LINE * done, parts, 0)
            done += size


def _finish(record: GroupLinearRecord, row: int, rows: int, strip: int, sums: int) -> None:
    """Writes the results of a block."""
    at, stride = record.out + LANES * strip * record.out_bytes, record.columns * record.out_bytes
    biases = [load_f32(record.params + 64 * (strip + v)) for v in unroll(range(VECTORS))]
    for m in range(rows):
        for v in unroll(range(VECTORS)):
            place, left = at + stride * (row + m), record.columns - LANES * (strip + v)
            result = load_f32(sums + LINE * m + 64 * v) + biases[v]
            store_columns(place + LANES * v * record.out_bytes, record.out_bytes, result, left)


def multiply_many(
    e2m1: Static[bool],
    record: GroupLinearRecord,
    row: int,
    rows: int,
    strip: int,
    w: int,
    soon: int,
    thread: int,
) -> None:
    """All strips of a block, from `strip` on. w: address of the block; soon: that of the next block, of which
    the first tiles prefetch what lies at the place of their own groups."""
    words, every = record.group_words, record.words // record.group_words
    parts = read_i64(record.scratch + 8 * thread)
    sums, most = parts + max(AT_ONCE, unpacked_bytes(words)), max(1, AT_ONCE // unpacked_bytes(words))
    for i in range(VECTORS * rows):
        store_f32(sums + 64 * i, f32x16(0.0))
    for first in range(0, every, most):
        groups, distance = min(most, every - first), LINE * (words + 1) * first
        _unpack(e2m1, words, groups, w + distance, parts)
        for v in unroll(range(0, VECTORS, WIDE)):
            at, next_at = 64 * v, soon + distance + 64 * v
            _add_groups(record, row, rows, first, groups, parts + at, sums + at, next_at)
    _finish(record, row, rows, strip, sums)
