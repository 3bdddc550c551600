"""The loops of kernels.cpu.attention.attention on vectors: scores and mixing. kernels.cpu.attention.softmax
is between.

Tiles of 16 positions are found through a list of their addresses: the keys of a part, its values, then
what is needed next. While a tile is computed with, the one that stands `ahead` bytes further in the list is
prefetched, line by line.
"""

from typing import Any

from kernels.cpu.attention.sizes import QUERY, SCORES
from kernels.cpu.attention.stored_words import StoredWords
from kernels.cpu.compiler.language import Static, unroll
from kernels.cpu.compiler.vectors import f32x16, i32x16
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.simd import load_f32, prefetch, reread, store_f32
from kernels.cpu.isa.vectors import LANES, read_i64, read_u32

FEW_REGISTERS, MANY_SUMS = OPERATIONS.rereads_weights, 4
"""Whether registers are few, and how many vectors of sums leave enough of these."""


def _add_reread(
    stored: Static[StoredWords],
    rows: Static[int],
    sums: list[Any],
    places: list[Any],
    at: int,
    pitch: Static[int],
) -> None:
    """As _add_products(), where sums leave few registers: a part is made right before its products, of words
    that are read once more."""
    for part in unroll(range(stored.parts)):
        for v in unroll(range(len(places))):
            first = reread(at)
            of_words = stored.weights(stored.load(reread(places[v])), part)
            for m in unroll(range(rows)):
                of_row = stored.inputs(i32x16(read_u32(first + pitch * m)), part)
                sums[len(places) * m + v] = stored.add(sums[len(places) * m + v], of_words, of_row)


def _add_products(
    stored: Static[StoredWords],
    rows: Static[int],
    sums: list[Any],
    places: list[Any],
    at: int,
    pitch: Static[int],
) -> None:
    """Adds the products of vectors of the cache's words with a word of each row to the sums, row by row.
    places: addresses of vectors. at: address of the first row's word. pitch: bytes from row to row."""
    if FEW_REGISTERS and stored.whole and rows * len(places) > MANY_SUMS:
        _add_reread(stored, rows, sums, places, at, pitch)
    else:
        words = [stored.load(places[v]) for v in unroll(range(len(places)))]
        of_words = [
            stored.weights(words[i // stored.parts], i % stored.parts)
            for i in unroll(range(len(places) * stored.parts))
        ]
        of_rows = [
            stored.inputs(i32x16(read_u32(at + pitch * (i // stored.parts))), i % stored.parts)
            for i in unroll(range(rows * stored.parts))
        ]
        for part in unroll(range(stored.parts)):
            for i in unroll(range(rows * len(places))):
                row = of_rows[i // len(places) * stored.parts + part]
                sums[i] = stored.add(sums[i], of_words[i % len(places) * stored.parts + part], row)


def score(
    stored: Static[StoredWords],
    rows: Static[int],
    side: Static[int],
    q: int,
    tiles: int,
    count: int,
    ahead: int,
    out: int,
    words: int,
) -> None:
    """16 positions of each of `count` tiles, for each of the rows. q: of a row [words] pairs of bfloat16 or
    float32, QUERY bytes from row to row. tiles: address of their list. side: tiles that are computed side by
    side, since sums of few rows would wait for one another; where they do not divide the count, one tile more
    is computed."""
    for step in range((count + side - 1) // side):
        entry = tiles + 8 * side * step
        keys = [read_i64(entry + 8 * i) for i in unroll(range(side))]
        later = [read_i64(entry + 8 * i + ahead) for i in unroll(range(side))]
        sums: list[Any] = [f32x16(0.0) for _ in unroll(range(rows * side))]
        for k in range(words):
            offset = stored.size * k
            for i in unroll(range(side)):
                prefetch(later[i] + offset)
            places = [keys[i] + offset for i in unroll(range(side))]
            _add_products(stored, rows, sums, places, q + 4 * k, QUERY)
        to = out + 64 * side * step
        for i in unroll(range(rows * side)):
            store_f32(to + SCORES * (i // side) + 64 * (i % side), sums[i])


def mix(
    stored: Static[StoredWords],
    rows: Static[int],
    vectors: Static[int],
    p: int,
    tiles: int,
    ahead: int,
    column: int,
    stride: int,
    sums: int,
    width: int,
    count: int,
) -> None:
    """Adds p * v of `count` steps to 16 * vectors columns of the rows' sums.

    A step is a pair of positions of bfloat16, or one of float32. tiles: address of the list of values.
    column: bytes before the first. stride: bytes of a step's values, as whole words. width: bytes of a row of
    sums."""
    to = sums + column
    columns = [to + width * (i // vectors) + 64 * (i % vectors) for i in unroll(range(rows * vectors))]
    totals: list[Any] = [load_f32(columns[i]) for i in unroll(range(rows * vectors))]
    for k in range(count):
        entry = tiles + 8 * (k // (LANES // stored.in_word))
        offset = (column + k % (LANES // stored.in_word) * stride) // (4 * LANES // stored.size)
        v_at, later = read_i64(entry) + offset, read_i64(entry + ahead) + offset
        for v in unroll(range(vectors)):
            prefetch(later + stored.size * v)
        places = [v_at + stored.size * v for v in unroll(range(vectors))]
        _add_products(stored, rows, totals, places, p + 4 * k, SCORES)
    for i in unroll(range(rows * vectors)):
        store_f32(columns[i], totals[i])


def copy_first_halves(stored: Static[StoredWords], source: int, to: int, vectors: int) -> None:
    """So many times 16 pairs as the cache holds them, the second of each replaced by 0."""
    for at in range(0, stored.size * vectors, stored.size):
        stored.store_raw(to + at, stored.load_raw(source + at) & stored.first_half)


def copy(source: int, to: int, vectors: int) -> None:
    """So many times 64 bytes."""
    for at in range(0, 64 * vectors, 64):
        store_f32(to + at, load_f32(source + at))


def clear(to: int, vectors: int) -> None:
    """So many times 64 bytes."""
    for at in range(0, 64 * vectors, 64):
        store_f32(to + at, f32x16(0.0))


def ask(address: int, lines: int) -> None:
    """For so many cache lines."""
    for at in range(0, 64 * lines, 64):
        prefetch(address + at)
