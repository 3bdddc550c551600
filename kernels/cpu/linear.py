"""The product of kernels.linear in bfloat16, on packed weights.

A tile is MR rows of x times 48 columns of the weight: MR x 3 registers of sums. Each step of its loop
over k loads three registers of weights, repeats a pair of x 16 times for every row, and adds 32 * 3
products per row.

                  48 columns
             w  [k, k+1] x 16 | 16 | 16          loaded once for MR rows
    x row 0  [k, k+1]   sums    sums  sums
    x row 1  [k, k+1]   sums    sums  sums       up to 8 rows: 24 of the 32 registers

Every tile adds the pairs of k in ascending order, so that a result does not depend on the tile, that
is, on how many rows there are.
"""

from typing import Any

from numba import njit, types
from numba.extending import intrinsic

from kernels.cpu.compiler import operation
from kernels.cpu.vectors import (
    F32S,
    LANES,
    dot_pairs,
    first_lanes,
    load,
    pairs_at,
    prefetch,
    read_i64,
    read_u32,
    repeat,
    repeated_pair,
    rounded,
    store_lanes,
    word,
    write_u32,
    zeros,
)

VECTORS = 3
COLUMNS = VECTORS * LANES
"""Columns of a tile, and of a block of packed weights. Tiles of 12 rows x 2 vectors reach 330
GFLOP/s on two Zen 4 cores, 8 x 3 reach 450 of 469."""
ROWS = 256
"""Rows that are computed before the next ones: x then stays in the second-level cache, while the
weights come from memory once per chunk."""


def _make_tile(rows: int, vectors: int) -> Any:
    """tile(x, x_stride, w, soon, bias, out, out_stride, pairs, columns, width): addresses; strides in bytes;
    soon: what is asked for from memory meanwhile; pairs: of k; columns: how many of the 16 * vectors exist;
    width: bytes of a result, 4: float32, 2: bfloat16."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, x_stride, w, soon, bias, out, out_stride, pairs, columns, width = args

        def add_pairs(k: Any, sums: list[Any]) -> list[Any]:
            w_at = builder.add(w, builder.mul(k, word(4 * COLUMNS)))
            weights = [pairs_at(builder, builder.add(w_at, word(64 * v))) for v in range(vectors)]
            if rows == 8:
                prefetch(builder, builder.add(soon, builder.mul(k, word(64))))
            x_at = builder.add(x, builder.mul(k, word(4)))
            totals = []
            for m in range(rows):
                pair = repeated_pair(builder, builder.add(x_at, builder.mul(x_stride, word(m))))
                of_row = sums[m * vectors : (m + 1) * vectors]
                totals += [dot_pairs(builder, one, w, pair) for one, w in zip(of_row, weights, strict=True)]
            return totals

        totals = repeat(builder, pairs, zeros(rows * vectors), add_pairs)
        for v in range(vectors):
            mask = first_lanes(builder, builder.sub(columns, word(v * LANES)))
            added = load(builder, builder.add(bias, word(64 * v)), F32S)
            first = builder.add(out, builder.mul(width, word(v * LANES)))
            results = [builder.fadd(total, added) for total in totals[v::vectors]]
            to = [builder.add(first, builder.mul(out_stride, word(m))) for m in range(rows)]
            with builder.if_else(builder.icmp_signed("==", width, word(4))) as (wide, narrow):
                with wide:
                    for result, address in zip(results, to, strict=True):
                        store_lanes(builder, result, address, mask)
                with narrow:
                    for result, address in zip(results, to, strict=True):
                        store_lanes(builder, rounded(builder, result), address, mask)
        return context.get_dummy_value()

    @intrinsic
    def tile(
        typing: Any,
        x: Any,
        x_stride: Any,
        w: Any,
        soon: Any,
        bias: Any,
        out: Any,
        out_stride: Any,
        pairs: Any,
        columns: Any,
        width: Any,
    ) -> Any:
        return types.void(*[types.int64] * 10), generate

    return tile


_tile_1, _tile_2, _tile_4, _tile_8 = (_make_tile(rows, VECTORS) for rows in (1, 2, 4, 8))
_strip_1, _strip_2, _strip_4, _strip_8 = (_make_tile(rows, 1) for rows in (1, 2, 4, 8))


@njit(error_model="numpy")
def _block(
    x: int,
    x_stride: int,
    w: int,
    soon: int,
    bias: int,
    out: int,
    out_stride: int,
    pairs: int,
    left: int,
    width: int,
    rows: int,
) -> None:
    """So many rows of 48 columns. soon: the block that comes next; a third of it is asked for with each of
    the first three tiles. Else the first tile waits for memory, and the others leave it idle: 32 rows then
    take a fifth longer."""
    row = 0
    while row < rows:
        x_at, out_at = x + row * x_stride, out + row * out_stride
        if rows - row >= 8:
            ahead = soon + 8 * row * pairs if row < 8 * VECTORS else w
            _tile_8(x_at, x_stride, w, ahead, bias, out_at, out_stride, pairs, left, width)
            row += 8
        elif rows - row >= 4:
            _tile_4(x_at, x_stride, w, w, bias, out_at, out_stride, pairs, left, width)
            row += 4
        elif rows - row >= 2:
            _tile_2(x_at, x_stride, w, w, bias, out_at, out_stride, pairs, left, width)
            row += 2
        else:
            _tile_1(x_at, x_stride, w, w, bias, out_at, out_stride, pairs, left, width)
            row += 1


@njit(error_model="numpy")
def _strip(
    x: int,
    x_stride: int,
    w: int,
    soon: int,
    bias: int,
    out: int,
    out_stride: int,
    pairs: int,
    left: int,
    width: int,
    rows: int,
) -> None:
    """So many rows of 16 columns."""
    row = 0
    while row < rows:
        x_at, out_at = x + row * x_stride, out + row * out_stride
        if rows - row >= 8:
            ahead = soon + 8 * row * pairs if row < 8 * VECTORS else w
            _strip_8(x_at, x_stride, w, ahead, bias, out_at, out_stride, pairs, left, width)
            row += 8
        elif rows - row >= 4:
            _strip_4(x_at, x_stride, w, w, bias, out_at, out_stride, pairs, left, width)
            row += 4
        elif rows - row >= 2:
            _strip_2(x_at, x_stride, w, w, bias, out_at, out_stride, pairs, left, width)
            row += 2
        else:
            _strip_1(x_at, x_stride, w, w, bias, out_at, out_stride, pairs, left, width)
            row += 1


@njit(error_model="numpy")
def linear_units(record: int) -> int:
    """Strips of 16 columns, once per chunk of rows."""
    rows, columns = read_i64(record + 8), read_i64(record + 48)
    return (rows + ROWS - 1) // ROWS * ((columns + LANES - 1) // LANES)


@njit(error_model="numpy")
def linear_share(record: int, unit: int, left: int, threads: int) -> int:
    """How many units to take from `unit` on, of those that are left: whole blocks within one chunk of rows;
    strips at the very end, so that threads end together."""
    strips = (read_i64(record + 48) + LANES - 1) // LANES
    at = unit % strips
    if left <= VECTORS * threads:
        return 1
    taken = max(VECTORS, left // (2 * threads))
    taken -= (at + taken) % VECTORS
    return min(max(taken, 1), strips - at)


@operation
def linear(record: int, first: int, count: int, thread: int) -> None:
    """record: rows, addresses of x, weight, bias and result, columns, pairs, width, and the address of the
    weight that is needed next, or 0.

    x: [rows, 2 * pairs] bfloat16. Weight, bias: of a packed weight (kernels.linear). Result: [rows,
    columns], float32 where width is 4, bfloat16 where it is 2.
    """
    rows, x, w = read_i64(record + 8), read_i64(record + 16), read_i64(record + 24)
    bias, out, columns = read_i64(record + 32), read_i64(record + 40), read_i64(record + 48)
    pairs, width, following = read_i64(record + 56), read_i64(record + 64), read_i64(record + 72)
    strips = (columns + LANES - 1) // LANES
    row = first // strips * ROWS
    strip, end = first % strips, first % strips + count
    x, out = x + row * pairs * 4, out + row * columns * width
    rows = min(rows - row, ROWS)
    while strip < end:
        block, inner = strip // VECTORS, strip % VECTORS
        w_at = w + block * pairs * 4 * COLUMNS + 64 * inner
        b_at, out_at = bias + 64 * strip, out + strip * LANES * width
        left = columns - strip * LANES
        soon = w_at + pairs * 4 * COLUMNS if strip + VECTORS < strips else following or w_at
        if inner == 0 and (strip + VECTORS <= end or end == strips):
            _block(x, pairs * 4, w_at, soon, b_at, out_at, columns * width, pairs, left, width, rows)
            strip += VECTORS
        else:
            _strip(x, pairs * 4, w_at, w_at, b_at, out_at, columns * width, pairs, left, width, rows)
            strip += 1


@operation
def packed_rows(record: int, first: int, count: int, thread: int) -> None:
    """record: rows, addresses of indexes, weight and result, pairs. Rows of a packed weight as they were.

    Indexes: [rows] int64. Result: [rows, 2 * pairs] bfloat16.
    """
    indexes, w, out = read_i64(record + 16), read_i64(record + 24), read_i64(record + 32)
    pairs = read_i64(record + 40)
    for row in range(first, first + count):
        index = read_i64(indexes + 8 * row)
        at = w + index // COLUMNS * pairs * 4 * COLUMNS + index % COLUMNS * 4
        for k in range(pairs):
            write_u32(out + 4 * (row * pairs + k), read_u32(at + 4 * COLUMNS * k))
