"""The product of kernels.linear on packed weights: in bfloat16, or in 8-bit integers.

A tile is MR rows of x times 48 columns of the weight: MR x 3 registers of sums. Each step of its loop
over k loads three registers of weights, repeats a pair of x 16 times for every row, and adds 32 * 3
products per row.

                  48 columns
             w  [k, k+1] x 16 | 16 | 16          loaded once for MR rows
    x row 0  [k, k+1]   sums    sums  sums
    x row 1  [k, k+1]   sums    sums  sums       up to 8 rows: 24 of the 32 registers

Every tile adds the pairs of k in ascending order, so that a result does not depend on the tile, that
is, on how many rows there are. In integers a word holds four of k, the sums are exact, and a tile ends
with what makes numbers of them (kernels.quantized).
"""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from kernels.cpu.compiler import operation
from kernels.cpu.vectors import (
    F32,
    F32S,
    I32S,
    LANES,
    broadcast,
    dot_pairs,
    dot_quads,
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


def _make_tile(rows: int, vectors: int, quantized: bool) -> Any:
    """tile(x, x_stride, w, soon, params, out, out_stride, words, columns, width, scales): addresses; strides
    in bytes; soon: what is asked for from memory meanwhile; params: of the columns, see linear(); words: of
    a row of x; columns: how many of the 16 * vectors exist; width: bytes of a result, 4: float32, 2:
    bfloat16; scales: of the rows of x, if they are integers."""
    dot = dot_quads if quantized else dot_pairs

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, x_stride, w, soon, params, out, out_stride, words, columns, width, scales = args

        def at(address: Any, stride: Any, m: int) -> Any:
            return builder.add(address, builder.mul(stride, word(m)))

        def add_words(k: Any, sums: list[Any]) -> list[Any]:
            w_at = builder.add(w, builder.mul(k, word(4 * COLUMNS)))
            weights = [pairs_at(builder, builder.add(w_at, word(64 * v))) for v in range(vectors)]
            if rows == 8:
                prefetch(builder, builder.add(soon, builder.mul(k, word(64))))
            x_at = builder.add(x, builder.mul(k, word(4)))
            totals = []
            for m in range(rows):
                pair = repeated_pair(builder, at(x_at, x_stride, m))
                of_row = sums[m * vectors : (m + 1) * vectors]
                totals += [dot(builder, one, w, pair) for one, w in zip(of_row, weights, strict=True)]
            return totals

        begin = [ir.Constant(I32S, [0] * LANES)] * (rows * vectors) if quantized else zeros(rows * vectors)
        totals = repeat(builder, words, begin, add_words)
        if quantized:
            factors = [broadcast(builder, load(builder, at(scales, word(4), m), F32)) for m in range(rows)]
        for v in range(vectors):
            mask = first_lanes(builder, builder.sub(columns, word(v * LANES)))
            planes = builder.add(params, word((3 if quantized else 1) * 64 * v))
            results, bias = totals[v::vectors], load(builder, planes, F32S)
            if quantized:
                both = zip(results, factors, strict=True)
                results = [_number(builder, total, planes, factor) for total, factor in both]
            results = [builder.fadd(result, bias) for result in results]
            first = builder.add(out, builder.mul(width, word(v * LANES)))
            to = [at(first, out_stride, m) for m in range(rows)]
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
        params: Any,
        out: Any,
        out_stride: Any,
        words: Any,
        columns: Any,
        width: Any,
        scales: Any,
    ) -> Any:
        return types.void(*[types.int64] * 11), generate

    return tile


def _number(builder: Any, total: Any, planes: Any, factor: Any) -> Any:
    """(sum - correction) * scale of the column * scale of the row."""
    correction = load(builder, builder.add(planes, word(128)), I32S)
    number = builder.sitofp(builder.sub(total, correction), F32S)
    scale = load(builder, builder.add(planes, word(64)), F32S)
    return builder.fmul(builder.fmul(number, scale), factor)


_tile_1, _tile_2, _tile_4, _tile_8 = (_make_tile(rows, VECTORS, False) for rows in (1, 2, 4, 8))
_strip_1, _strip_2, _strip_4, _strip_8 = (_make_tile(rows, 1, False) for rows in (1, 2, 4, 8))
_tile_1_int8, _tile_2_int8, _tile_4_int8, _tile_8_int8 = (
    _make_tile(rows, VECTORS, True) for rows in (1, 2, 4, 8)
)
_strip_1_int8, _strip_2_int8, _strip_4_int8, _strip_8_int8 = (
    _make_tile(rows, 1, True) for rows in (1, 2, 4, 8)
)


@njit(error_model="numpy")
def _block(
    x: int,
    x_stride: int,
    w: int,
    soon: int,
    params: int,
    out: int,
    out_stride: int,
    words: int,
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
            ahead = soon + 8 * row * words if row < 8 * VECTORS else w
            _tile_8(x_at, x_stride, w, ahead, params, out_at, out_stride, words, left, width, 0)
            row += 8
        elif rows - row >= 4:
            _tile_4(x_at, x_stride, w, w, params, out_at, out_stride, words, left, width, 0)
            row += 4
        elif rows - row >= 2:
            _tile_2(x_at, x_stride, w, w, params, out_at, out_stride, words, left, width, 0)
            row += 2
        else:
            _tile_1(x_at, x_stride, w, w, params, out_at, out_stride, words, left, width, 0)
            row += 1


@njit(error_model="numpy")
def _block_int8(
    x: int,
    x_stride: int,
    w: int,
    soon: int,
    params: int,
    out: int,
    out_stride: int,
    words: int,
    left: int,
    width: int,
    scales: int,
    rows: int,
) -> None:
    """So many rows of 48 columns, in integers."""
    row = 0
    while row < rows:
        x_at, out_at, scale = x + row * x_stride, out + row * out_stride, scales + 4 * row
        if rows - row >= 8:
            ahead = soon + 8 * row * words if row < 8 * VECTORS else w
            _tile_8_int8(x_at, x_stride, w, ahead, params, out_at, out_stride, words, left, width, scale)
            row += 8
        elif rows - row >= 4:
            _tile_4_int8(x_at, x_stride, w, w, params, out_at, out_stride, words, left, width, scale)
            row += 4
        elif rows - row >= 2:
            _tile_2_int8(x_at, x_stride, w, w, params, out_at, out_stride, words, left, width, scale)
            row += 2
        else:
            _tile_1_int8(x_at, x_stride, w, w, params, out_at, out_stride, words, left, width, scale)
            row += 1


@njit(error_model="numpy")
def _strip(
    x: int,
    x_stride: int,
    w: int,
    soon: int,
    params: int,
    out: int,
    out_stride: int,
    words: int,
    left: int,
    width: int,
    rows: int,
) -> None:
    """So many rows of 16 columns."""
    row = 0
    while row < rows:
        x_at, out_at = x + row * x_stride, out + row * out_stride
        if rows - row >= 8:
            ahead = soon + 8 * row * words if row < 8 * VECTORS else w
            _strip_8(x_at, x_stride, w, ahead, params, out_at, out_stride, words, left, width, 0)
            row += 8
        elif rows - row >= 4:
            _strip_4(x_at, x_stride, w, w, params, out_at, out_stride, words, left, width, 0)
            row += 4
        elif rows - row >= 2:
            _strip_2(x_at, x_stride, w, w, params, out_at, out_stride, words, left, width, 0)
            row += 2
        else:
            _strip_1(x_at, x_stride, w, w, params, out_at, out_stride, words, left, width, 0)
            row += 1


@njit(error_model="numpy")
def _strip_int8(
    x: int,
    x_stride: int,
    w: int,
    soon: int,
    params: int,
    out: int,
    out_stride: int,
    words: int,
    left: int,
    width: int,
    scales: int,
    rows: int,
) -> None:
    """So many rows of 16 columns, in integers."""
    row = 0
    while row < rows:
        x_at, out_at, scale = x + row * x_stride, out + row * out_stride, scales + 4 * row
        if rows - row >= 8:
            ahead = soon + 8 * row * words if row < 8 * VECTORS else w
            _strip_8_int8(x_at, x_stride, w, ahead, params, out_at, out_stride, words, left, width, scale)
            row += 8
        elif rows - row >= 4:
            _strip_4_int8(x_at, x_stride, w, w, params, out_at, out_stride, words, left, width, scale)
            row += 4
        elif rows - row >= 2:
            _strip_2_int8(x_at, x_stride, w, w, params, out_at, out_stride, words, left, width, scale)
            row += 2
        else:
            _strip_1_int8(x_at, x_stride, w, w, params, out_at, out_stride, words, left, width, scale)
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
    """record: rows, addresses of x, weight, params and result, columns, words, width, address of the weight
    that is needed next, or 0, and of the scales of x; 0: not in integers.

    x: [rows, words], a word two bfloat16 or four uint8. Weight: packed (kernels.linear, kernels.quantized).
    Params: of every 16 columns the biases [16] float32; in integers then the scales [16] float32 and the
    corrections [16] int32. Result: [rows, columns], float32 where width is 4, bfloat16 where it is 2.
    """
    rows, x, w = read_i64(record + 8), read_i64(record + 16), read_i64(record + 24)
    params, out, columns = read_i64(record + 32), read_i64(record + 40), read_i64(record + 48)
    words, width, following = read_i64(record + 56), read_i64(record + 64), read_i64(record + 72)
    scales = read_i64(record + 80)
    strips, plane = (columns + LANES - 1) // LANES, 192 if scales else 64
    row = first // strips * ROWS
    strip, end = first % strips, first % strips + count
    x, out, scale_at = x + row * words * 4, out + row * columns * width, scales + 4 * row
    rows, stride = min(rows - row, ROWS), columns * width
    while strip < end:
        block, inner = strip // VECTORS, strip % VECTORS
        w_at = w + block * words * 4 * COLUMNS + 64 * inner
        p_at, out_at = params + plane * strip, out + strip * LANES * width
        left = columns - strip * LANES
        soon = w_at + words * 4 * COLUMNS if strip + VECTORS < strips else following or w_at
        if inner == 0 and (strip + VECTORS <= end or end == strips):
            if scales:
                _block_int8(
                    x, words * 4, w_at, soon, p_at, out_at, stride, words, left, width, scale_at, rows
                )
            else:
                _block(x, words * 4, w_at, soon, p_at, out_at, stride, words, left, width, rows)
            strip += VECTORS
        else:
            if scales:
                _strip_int8(
                    x, words * 4, w_at, w_at, p_at, out_at, stride, words, left, width, scale_at, rows
                )
            else:
                _strip(x, words * 4, w_at, w_at, p_at, out_at, stride, words, left, width, rows)
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
