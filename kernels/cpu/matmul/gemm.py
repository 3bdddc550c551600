"""The product of kernels.ops.layers.linear on packed weights: in bfloat16, or in 8-bit integers.

A tile is MR rows of x times 48 columns of the weight: MR x 3 vectors of sums. Each step of its loop
over k loads three vectors of weights, repeats a pair of x 16 times for every row, and adds 32 * 3
products per row.

                  48 columns
             w  [k, k+1] x 16 | 16 | 16          loaded once for MR rows
    x row 0  [k, k+1]   sums    sums  sums
    x row 1  [k, k+1]   sums    sums  sums       with AVX-512 up to 8 rows: 24 of the 32 registers

Where a vector takes two registers of 16, a tile is 6 rows times 16 columns, and of one or two rows times 48
(kernels.cpu.isa.operations). Where no instruction multiplies pairs, the parts of x's words
(kernels.cpu.isa.dot) are written to the thread's scratch memory first, once for all columns that the thread
takes; the parts of a weight's words are made in each tile.

Every tile adds the pairs of k in the same order, so that a result does not depend on the tile, that
is, on how many rows there are. In integers a word holds four of k, the sums are exact, and a tile ends
with what makes numbers of them (kernels.cpu.matmul.int8).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernels.cpu.attention.kv_prefetch_kernel import LINES, Ahead, part_of_tile, pieces_of_block
from kernels.cpu.attention.records import PrefetchStream
from kernels.cpu.compiler import types
from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa.dot import Dot
from kernels.cpu.isa.operations import Tiles
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.vectors import (
    F32,
    F32S,
    I32,
    I32S,
    LANES,
    broadcast,
    first_lanes,
    load,
    prefetch,
    read_i64,
    read_u32,
    repeat,
    reread,
    splat,
    word,
    write_u32,
)
from kernels.cpu.matmul.records import LinearRecord, PackedRowsRecord
from kernels.cpu.matmul.split_inputs import split_integers, split_pairs
from kernels.cpu.runtime.work_split import COLUMNS, ROWS, VECTORS, following_block, last_block

SOON = 2
"""Tiles of 8 rows in which a block's successor is asked for."""


@dataclass(frozen=True)
class _Product:
    """What a tile needs to know; all but the first two are values of LLVM. Addresses; strides in bytes."""

    quantized: bool
    dot: Dot
    x_stride: Any
    w: Any
    params: Any  # of the columns, see linear()
    out_stride: Any
    words: Any  # of a row of x
    columns: Any  # how many of those that the registers hold exist
    width: Any  # bytes of a result; 4: float32, 2: bfloat16
    distance: Any  # bytes from weights to others that are asked for with them; None: none are


def _multiply(
    builder: Any,
    product: _Product,
    rows: int,
    vectors: int,
    x: Any,
    ahead: Ahead | None,
    out: Any,
    scales: Any,
) -> None:
    """A tile: so many rows, times 16 * vectors columns. ahead: what is asked for from memory meanwhile.
    scales: address of the scales of x, if it is integers."""
    dot = product.dot

    x_rows = [_at(builder, x, product.x_stride, m) for m in range(rows)]
    if OPERATIONS.rereads_weights:  # else LLVM goes from row to row with an addition each
        x_rows = [reread(builder, at) for at in x_rows]

    def add_words(k: Any, sums: list[Any]) -> list[Any]:
        w_at = builder.add(product.w, builder.mul(k, word(4 * COLUMNS)))
        offset = builder.mul(k, word(4 * dot.parts))
        totals = list(sums)
        for v in range(vectors) if product.distance is not None else ():
            prefetch(builder, builder.add(builder.add(w_at, product.distance), word(64 * v)))
        for part in range(dot.parts):
            own = reread(builder, w_at) if OPERATIONS.rereads_weights else w_at

            def weight(v: int, own: Any = own, part: int = part) -> Any:
                return dot.weights(builder, load(builder, builder.add(own, word(64 * v)), I32S))[part]

            def value(m: int, part: int = part) -> Any:
                at = builder.add(x_rows[m], offset)
                return broadcast(builder, load(builder, builder.add(at, word(4 * part)), I32))

            _add_products(builder, dot, totals, (weight, vectors), (value, rows))
        return totals

    begin = [splat(dot.sums, 0)] * (rows * vectors)
    if ahead is None:
        totals = repeat(builder, product.words, begin, add_words)
    else:
        totals = _ask_meanwhile(builder, product.words, begin, add_words, ahead)
    to = [_at(builder, out, product.out_stride, m) for m in range(rows)]
    for v in range(vectors):
        results = totals[v::vectors]
        planes = builder.add(product.params, word((3 if product.quantized else 1) * 64 * v))
        if product.quantized:
            results = _numbers(builder, results, planes, scales)
        bias = load(builder, planes, F32S)
        results = [builder.fadd(result, bias) for result in results]
        write_columns(builder, product.columns, product.width, v, results, to)


def _add_products(
    builder: Any,
    dot: Dot,
    totals: list[Any],
    weights: tuple[Callable[[int], Any], int],
    values: tuple[Callable[[int], Any], int],
) -> None:
    """To the sums of each row of each vector. Weights of few vectors stay in registers,
    or values of few rows. Both are made by functions, so many times."""
    (weight, vectors), (value, rows) = weights, values
    if rows < vectors and OPERATIONS.rereads_weights:
        kept = [value(m) for m in range(rows)]
        for v in range(vectors):
            one = weight(v)
            for m in range(rows):
                totals[m * vectors + v] = dot.add(builder, totals[m * vectors + v], one, kept[m])
        return
    kept = [weight(v) for v in range(vectors)]
    for m in range(rows):
        one = value(m)
        for v in range(vectors):
            totals[m * vectors + v] = dot.add(builder, totals[m * vectors + v], kept[v], one)


def _ask_meanwhile(
    builder: Any, words: Any, values: list[Any], body: Callable[[Any, list[Any]], list[Any]], ahead: Ahead
) -> list[Any]:
    """repeat(), and what is asked for meanwhile."""

    def some_words(number: Any, before: list[Any]) -> list[Any]:
        first = builder.mul(number, word(LINES))
        left = builder.sub(words, first)
        count = builder.select(builder.icmp_signed("<", left, word(LINES)), left, word(LINES))

        def one_word(i: Any, current: list[Any]) -> list[Any]:
            line = ahead.ask(builder, current[0])
            return [line, *body(builder.add(first, i), current[1:])]

        return repeat(builder, count, [ahead.first_line(builder, number), *before], one_word)[1:]

    times = builder.udiv(builder.add(words, word(LINES - 1)), word(LINES))
    return repeat(builder, times, values, some_words)


def _at(builder: Any, address: Any, stride: Any, row: int) -> Any:
    return builder.add(address, builder.mul(stride, word(row)))


def _numbers(builder: Any, totals: list[Any], planes: Any, scales: Any) -> list[Any]:
    """(sum - correction) * scale of the column * scale of the row, of each row."""
    correction = load(builder, builder.add(planes, word(128)), I32S)
    column = load(builder, builder.add(planes, word(64)), F32S)
    numbers = []
    for m, total in enumerate(totals):
        row = broadcast(builder, load(builder, builder.add(scales, word(4 * m)), F32))
        number = builder.sitofp(builder.sub(total, correction), F32S)
        numbers.append(builder.fmul(builder.fmul(number, column), row))
    return numbers


def write_columns(
    builder: Any, columns: Any, width: Any, vector: int, results: list[Any], rows: list[Any]
) -> None:
    """16 columns of each row, as far as they exist: so many from the first vector on. width: bytes of a
    result; 4: float32, 2: bfloat16. rows: their addresses."""
    left = builder.sub(columns, word(vector * LANES))
    mask, whole = first_lanes(builder, left), builder.icmp_signed(">=", left, word(LANES))
    offset = builder.mul(width, word(vector * LANES))
    to = [builder.add(row, offset) for row in rows]
    with builder.if_else(builder.icmp_signed("==", width, word(4))) as (wide, narrow):
        with wide:
            for result, address in zip(results, to, strict=True):
                OPERATIONS.store_first(builder, result, address, mask, whole)
        with narrow:
            for result, address in zip(results, to, strict=True):
                halves = OPERATIONS.round_to_bfloat16(builder, result)
                OPERATIONS.store_first(builder, halves, address, mask, whole)


def _make_strip(vectors: int, quantized: bool, tiles: Tiles) -> Any:
    """strip(x, x_stride, w, soon, soon_tiles, pieces, keys, params, out, out_stride, words, columns, width,
    scales, rows): all rows of 16 * vectors columns, in these tiles. x: words are split into parts.

    soon: the columns that come next. They are asked for with the first tiles of 8, so many. Else the first
    tile waits for memory, and the others leave it idle: 32 rows then take a fifth longer. pieces, keys: what
    the other tiles of 8 ask for, see kernels.cpu.attention.kv_prefetch_kernel.
    """

    @intrinsic(types.void(*[types.int64] * 15))
    def strip(
        builder: Any,
        x: Any,
        x_stride: Any,
        w: Any,
        soon: Any,
        soon_tiles: Any,
        pieces: Any,
        keys: Any,
        params: Any,
        out: Any,
        out_stride: Any,
        words: Any,
        columns: Any,
        width: Any,
        scales: Any,
        rows: Any,
    ) -> None:
        dot = OPERATIONS.quads if quantized else OPERATIONS.pairs
        distance = builder.sub(soon, w) if tiles.distance == 0 else tiles.distance and word(tiles.distance)
        product = _Product(quantized, dot, x_stride, w, params, out_stride, words, columns, width, distance)

        def tile(size: int, row: Any, ahead: Ahead | None) -> None:
            x_at, out_at = (
                builder.add(at, builder.mul(row, stride)) for at, stride in ((x, x_stride), (out, out_stride))
            )
            scales_at = builder.add(scales, builder.mul(row, word(4)))
            _multiply(builder, product, size, vectors, x_at, ahead, out_at, scales_at)

        def whole_tile(i: Any, nothing: list[Any]) -> list[Any]:
            ahead = None
            if tiles.prefetches:
                ahead = part_of_tile(builder, i, words, (soon, soon_tiles), (pieces, keys), w)
            tile(tiles.rows, builder.mul(i, word(tiles.rows)), ahead)
            return nothing

        whole = builder.udiv(rows, word(tiles.rows))
        if tiles.least_rest:
            whole = _without_short_rest(builder, rows, whole, tiles)
        with builder.if_then(builder.icmp_signed(">", whole, word(0))):
            repeat(builder, whole, [], whole_tile)
        row = builder.mul(whole, word(tiles.rows))
        for size, least in tiles.rest:
            goes_on = builder.icmp_signed(">=", builder.sub(rows, row), word(least))
            with builder.if_then(goes_on):
                tile(size, row, None)
            row = builder.select(goes_on, builder.add(row, word(size)), row)

    return strip


def _without_short_rest(builder: Any, rows: Any, whole: Any, tiles: Tiles) -> Any:
    """How many whole tiles there are, or one less where too few rows would be left behind them."""
    rest = builder.sub(rows, builder.mul(whole, word(tiles.rows)))
    short = builder.icmp_unsigned("<", builder.sub(rest, word(1)), word(tiles.least_rest - 1))
    some = builder.icmp_signed(">", whole, word(0))
    return builder.sub(whole, builder.zext(builder.and_(short, some), whole.type))


packed_block = _make_strip(VECTORS, False, OPERATIONS.block)
packed_strip = _make_strip(1, False, OPERATIONS.strip)
_block_int8 = _make_strip(VECTORS, True, OPERATIONS.block)
_strip_int8 = _make_strip(1, True, OPERATIONS.strip)


PAIR_PARTS, QUAD_PARTS = OPERATIONS.pairs.parts, OPERATIONS.quads.parts
BLOCK_ROWS = OPERATIONS.block_rows


@operation
def linear(record: LinearRecord, first: int, count: int, thread: int) -> None:
    """Units first .. first + count - 1: strips, within a chunk of rows."""
    rows, x, w, params, out = record.rows, record.x, record.weight, record.params, record.out
    columns, words, width, following = record.columns, record.words, record.out_bytes, record.following
    stream, scales, scratch = record.stream, record.scales, record.scratch
    strips, plane = (columns + LANES - 1) // LANES, 192 if scales else 64
    row = first // strips * ROWS
    strip, end = first % strips, first % strips + count
    x, out, scale_at = x + row * words * 4, out + row * columns * width, scales + 4 * row
    rows, pitch, stride = min(rows - row, ROWS), 4 * words, columns * width
    if scales and QUAD_PARTS > 1:
        x, pitch = split_integers(x, rows, words, read_i64(scratch + 8 * thread)), 4 * words * QUAD_PARTS
    elif scales == 0 and PAIR_PARTS > 1:
        x, pitch = split_pairs(x, rows, words, read_i64(scratch + 8 * thread)), 4 * words * PAIR_PARTS
    last = last_block(strips, thread)
    while strip < end:
        block, inner = strip // VECTORS, strip % VECTORS
        w_at = w + block * words * 4 * COLUMNS + 64 * inner
        p_at, out_at = params + plane * strip, out + strip * LANES * width
        left = columns - strip * LANES
        soon = following_block(following, thread, w_at) if block == last else w_at + words * 4 * COLUMNS
        whole = rows <= BLOCK_ROWS and inner == 0 and (strip + VECTORS <= end or end == strips)
        pieces = pieces_of_block(stream, block, words, rows // 8 - SOON) if whole else 0
        keys = PrefetchStream.at(stream).keys if pieces else 0
        if whole and scales:
            _block_int8(
                x,
                pitch,
                w_at,
                soon,
                SOON,
                pieces,
                keys,
                p_at,
                out_at,
                stride,
                words,
                left,
                width,
                scale_at,
                rows,
            )
        elif whole:
            packed_block(
                x, pitch, w_at, soon, SOON, pieces, keys, p_at, out_at, stride, words, left, width, 0, rows
            )
        elif scales:
            _strip_int8(
                x, pitch, w_at, soon, 0, 0, 0, p_at, out_at, stride, words, left, width, scale_at, rows
            )
        else:
            packed_strip(x, pitch, w_at, soon, 0, 0, 0, p_at, out_at, stride, words, left, width, 0, rows)
        strip += VECTORS if whole else 1


@operation
def packed_rows(record: PackedRowsRecord, first: int, count: int, thread: int) -> None:
    """Rows of a packed weight as they were."""
    w, out, pairs = record.weight, record.out, record.words
    for row in range(first, first + count):
        index = read_i64(record.indexes + 8 * row)
        at = w + index // COLUMNS * pairs * 4 * COLUMNS + index % COLUMNS * 4
        for k in range(pairs):
            write_u32(out + 4 * (row * pairs + k), read_u32(at + 4 * COLUMNS * k))
