"""Tiles of the product of kernels.cpu.matmul.compact.weight: some rows of x times a block, or a strip, in
12 bits.

Up to six rows multiply what was unpacked while it is in registers. Eight need those for their sums: what is
unpacked goes through memory. It is read a group later than it was written: a processor that reads at once
what it has just stored waits for that, and unpacking would cost half of what these rows' products do, not a
twentieth. Where further rows come, the whole block stays in memory for them; else its groups take turns in
two places, which stay in the first-level cache.
"""

from collections.abc import Iterator
from itertools import product

from kernels.cpu.compiler.language import Static, unroll
from kernels.cpu.compiler.vectors import f32x16, i8x64, i32x16
from kernels.cpu.isa.sets.halves import words_of
from kernels.cpu.isa.simd import (
    PAIR_PARTS,
    add_pairs,
    load_f32,
    load_i32,
    pair_weights,
    prefetch,
)
from kernels.cpu.isa.vectors import LANES, read_i64, read_u32
from kernels.cpu.matmul.compact.unpack import (
    AHEAD,
    GROUP,
    STRIP_BYTES,
    WORDS,
    table_of,
    unpack,
    write_piece,
    write_rare,
)
from kernels.cpu.matmul.records import CompactLinearRecord
from kernels.cpu.matmul.words import PAIR_BYTES, store_columns
from kernels.cpu.runtime.work_split import COLUMNS, VECTORS

REGISTER_ROWS, FIRST = (1, 2, 4, 5, 6), 8
"""Rows of the tiles that unpack into registers, and of the one that writes what it unpacks."""
IN_TURNS, ALL = 1, -1
"""Which groups it leaves in memory: the last two, or all, for further rows."""

EVERY = 5
"""Rows of a word, between which something is unpacked: 6 times in 4 words of 8 rows. As many of each part,
where words are multiplied in parts (kernels.cpu.isa.dot)."""


UNPACKED = WORDS * 4 * COLUMNS
"""Bytes of a group, as kernels.cpu.matmul.packed has it."""


def ask_ahead(vectors: Static[int], w: int, soon: int, groups: int, group: int) -> None:
    """For a group that comes AHEAD groups later, in this block or in the next one. w, soon: their
    addresses."""
    later = group + AHEAD
    block = w if later < groups else soon
    number = later if later < groups else later - groups
    for line in unroll(range(0, STRIP_BYTES * vectors, 64)):
        prefetch(block + GROUP * number + line)


def strips_of(vectors: Static[int], w: int, group: int) -> list[int]:
    """Addresses of a group's strips, side by side."""
    return [w + GROUP * group + STRIP_BYTES * v for v in unroll(range(vectors))]


def list_address(record: CompactLinearRecord, strip: int, leaf: int) -> int:
    """Address of the address of the rare numbers of a leaf of a strip. Those of one leaf are side by side."""
    blocks = (record.columns + COLUMNS - 1) // COLUMNS
    return record.lists + 8 * (VECTORS * blocks * leaf + strip)


def _write_usual(strips: list[int], table: i8x64, out: int) -> None:
    """Writes a group's words as if no number were rare."""
    for half in unroll(range(2)):
        for v in unroll(range(len(strips))):
            write_piece(strips, table, half, v, out)


def unpack_strip(w: int, rare: int, base: int, groups: int, out: int) -> None:
    """As kernels.cpu.matmul.packed has it. rare: address of the address of its list."""
    table, lists = table_of(base), [read_i64(rare)]
    for group in range(groups):
        ask_ahead(1, w, w, groups, group)
        strips = strips_of(1, w, group)
        _write_usual(strips, table, out + UNPACKED * group)
        write_rare(strips, table, lists, out + UNPACKED * group)


def _add_products(sums: list[f32x16], weights: list[i32x16], x: int, m: Static[int]) -> None:
    """Adds the products of a word, or of a part of it, of row m and of each strip. x: its address."""
    value = i32x16(read_u32(x))
    for v in unroll(range(len(weights))):
        sums[len(weights) * m + v] = add_pairs(sums[len(weights) * m + v], weights[v], value)


def _multiply_unpacked(
    x_rows: list[int], sums: list[f32x16], lists: list[int], table: i8x64, w: int, soon: int, groups: int
) -> None:
    """Adds the products of what is unpacked into registers. x_rows: addresses of the parts of their words."""
    for group in range(groups):
        ask_ahead(len(lists), w, soon, groups, group)
        words = unpack(strips_of(len(lists), w, group), table, lists)
        for place in unroll(range(WORDS)):
            for part in unroll(range(PAIR_PARTS)):
                weights = [
                    pair_weights(words_of(words[WORDS * v + place]), part) for v in unroll(range(len(lists)))
                ]
                for m in unroll(range(len(x_rows))):
                    at = x_rows[m] + PAIR_BYTES * (WORDS * group + place) + 4 * part
                    _add_products(sums, weights, at, m)


def _steps() -> Iterator[tuple[int, int, int, int, int]]:
    """Of FIRST rows: (place of a word, part, row, half, strip). Behind the row a half of the strip's next
    group is written; -1: nothing."""
    for count, step in enumerate(product(range(WORDS), range(PAIR_PARTS), range(FIRST)), 1):
        piece, rest = divmod(count, EVERY * PAIR_PARTS)
        writes = rest == 0 and piece <= 2 * VECTORS
        yield *step, (piece - 1) // VECTORS if writes else -1, (piece - 1) % VECTORS


_STEPS = tuple(_steps())


def _multiply_group(
    writes: Static[bool],
    x_rows: list[int],
    sums: list[f32x16],
    x_at: int,
    kept: int,
    following: list[int],
    table: i8x64,
    to: int,
) -> None:
    """Adds the products of a group that is in memory. kept: its address. writes: meanwhile, what follows,
    addresses of its strips, is unpacked."""
    for place, part, m, half, v in unroll(_STEPS):
        if m == 0:
            at = kept + 4 * COLUMNS * place
            weights = [pair_weights(load_i32(at + 64 * v), part) for v in unroll(range(VECTORS))]
        _add_products(sums, weights, x_rows[m] + x_at + PAIR_BYTES * place + 4 * part, m)
        if writes and half >= 0:
            write_piece(following, table, half, v, to)


def _multiply_kept(
    x_rows: list[int],
    sums: list[f32x16],
    lists: list[int],
    table: i8x64,
    w: int,
    soon: int,
    groups: int,
    kept: int,
    keeps: int,
) -> None:
    """Adds the products of what is unpacked into memory: while a group is multiplied, the next one is
    written. Rare numbers are put in before it is multiplied. The weight has at least 2 groups. keeps:
    IN_TURNS or ALL."""
    ask_ahead(VECTORS, w, soon, groups, 0)
    _write_usual(strips_of(VECTORS, w, 0), table, kept)
    size = PAIR_BYTES * WORDS
    group = 0
    while True:  # at least once: were it to be asked first, the sums would not stay in their registers
        ask_ahead(VECTORS, w, soon, groups, group + 1)
        strips, following = strips_of(VECTORS, w, group), strips_of(VECTORS, w, group + 1)
        at, to = kept + UNPACKED * (group & keeps), kept + UNPACKED * ((group + 1) & keeps)
        write_rare(strips, table, lists, at)
        _multiply_group(True, x_rows, sums, size * group, at, following, table, to)
        group += 1
        if group >= groups - 1:
            break
    last = groups - 1
    strips, at = strips_of(VECTORS, w, last), kept + UNPACKED * (last & keeps)
    write_rare(strips, table, lists, at)
    _multiply_group(False, x_rows, sums, size * last, at, strips, table, at)


def tile(
    rows: Static[int],
    vectors: Static[int],
    x: int,
    stride: int,
    last: int,
    w: int,
    soon: int,
    rare: int,
    base: int,
    groups: int,
    kept: int,
    keeps: int,
    params: int,
    out: int,
    out_stride: int,
    columns: int,
    width: int,
) -> None:
    """So many rows of 16 * vectors columns. x: address of the parts of their words. last: number of the last
    row that exists; those behind it are computed as it is. soon: address of the block that comes next. width:
    bytes of a result; 4: float32, 2: bfloat16. FIRST rows leave groups at `kept` as
    kernels.cpu.matmul.packed has them: IN_TURNS or ALL."""
    numbers = [min(m, last) for m in unroll(range(rows))]
    x_rows = [x + stride * numbers[m] for m in unroll(range(rows))]
    out_rows = [out + out_stride * numbers[m] for m in unroll(range(rows))]
    sums = [f32x16(0.0) for _ in unroll(range(rows * vectors))]
    table, lists = table_of(base), [read_i64(rare + 8 * v) for v in unroll(range(vectors))]
    if rows == FIRST:
        _multiply_kept(x_rows, sums, lists, table, w, soon, groups, kept, keeps)
    else:
        _multiply_unpacked(x_rows, sums, lists, table, w, soon, groups)
    for v in unroll(range(vectors)):
        bias = load_f32(params + 64 * v)
        for m in unroll(range(rows)):
            total = sums[vectors * m + v] + bias
            store_columns(out_rows[m] + LANES * v * width, width, total, columns - LANES * v)
