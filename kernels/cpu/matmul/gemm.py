"""The product of kernels.ops.layers.linear on packed weights, written once for all words. Its operations are
those of kernels.cpu.matmul.gemm_bfloat16, gemm_int8 and gemm_float32: a model needs one or two of them.

A tile is MR rows of x times 48 columns of the weight: MR x 3 vectors of sums. Each step of its loop
over k loads three vectors of weights, repeats a pair of x 16 times for every row, and adds 32 * 3
products per row.

                  48 columns
             w  [k, k+1] x 16 | 16 | 16          loaded once for MR rows
    x row 0  [k, k+1]   sums    sums  sums
    x row 1  [k, k+1]   sums    sums  sums       with AVX-512 up to 8 rows: 24 of the 32 registers

Where a vector takes two registers of 16, a tile is 6 rows times 16 columns, and of one or two rows times 48
(kernels.cpu.isa.operations); from 3 rows of floats on see kernels.cpu.matmul.few_rows. Where no instruction
multiplies pairs, the parts of x's words (kernels.cpu.isa.dot) are written to the thread's scratch memory
first, once for all columns that the thread takes; the parts of a weight's words are made in each tile, or, of
many rows where registers are few, in the first one (kernels.cpu.matmul.many_rows).

Every tile adds the pairs of k in the same order, so that a result does not depend on the tile, that
is, on how many rows there are. In integers a word holds four of k, the sums are exact, and a tile ends
with what makes numbers of them (kernels.cpu.matmul.int8).
"""

from typing import Any

from kernels.cpu.attention.planning.kv_prefetch_kernel import LINES, first_line, part_of_tile, pieces_of_block
from kernels.cpu.attention.records import PrefetchStream
from kernels.cpu.compiler.language import Static, unroll
from kernels.cpu.compiler.vectors import f32x16, i32x16
from kernels.cpu.isa.operations import Tiles
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.simd import load_f32, prefetch, reread
from kernels.cpu.isa.vectors import LANES, read_f32, read_i64, read_u32
from kernels.cpu.matmul import many_rows
from kernels.cpu.matmul.few_rows import multiply_few
from kernels.cpu.matmul.leaves import begin_leaf, end_leaf, first_written, leaf_bytes, writing_record
from kernels.cpu.matmul.many_rows import multiply_many
from kernels.cpu.matmul.records import LinearRecord
from kernels.cpu.matmul.words import Words, dequantized, split_bytes, split_inputs, store_columns
from kernels.cpu.runtime.records import ProductRecord
from kernels.cpu.runtime.work_split import COLUMNS, ROWS, VECTORS, following_block, last_block

SOON = 2
"""Tiles of 8 rows in which a block's successor is prefetched."""
LONG, NEAR = 192 << 10, 48 << 10
"""Bytes. Tiles without a distance of their own prefetch the following block while they multiply this one.
Where a block is longer than LONG, they prefetch what is NEAR: of 4864 inputs in bfloat16 a block is half of a
second-level cache, and what was asked for a block ahead was gone again when it was needed."""
BLOCK, STRIP, BLOCK_ROWS = OPERATIONS.block, OPERATIONS.strip, OPERATIONS.block_rows
FEW_REGISTERS = OPERATIONS.rereads_weights


def _add_word(
    words: Static[Words],
    rows: Static[int],
    vectors: Static[int],
    sums: list[Any],
    x_rows: list[Any],
    offset: int,
    w: int,
) -> None:
    """Adds the products of one word of each row and of each column. x_rows: addresses of rows of x. Where
    registers are few, those of weights of many columns or those of many rows are filled one by one."""
    for part in unroll(range(words.parts)):
        at = reread(w)
        if FEW_REGISTERS and rows < vectors:
            values = [i32x16(read_u32(x_rows[m] + offset + 4 * part)) for m in unroll(range(rows))]
            for v in unroll(range(vectors)):
                weight = words.weights(words.load(at + LANES * words.size * v), part)
                for m in unroll(range(rows)):
                    sums[vectors * m + v] = words.add(sums[vectors * m + v], weight, values[m])
        else:
            weights = [
                words.weights(words.load(at + LANES * words.size * v), part) for v in unroll(range(vectors))
            ]
            for m in unroll(range(rows)):
                value = i32x16(read_u32(x_rows[m] + offset + 4 * part))
                for v in unroll(range(vectors)):
                    sums[vectors * m + v] = words.add(sums[vectors * m + v], weights[v], value)


def _tile(
    kind: Static[Words],
    rows: Static[int],
    vectors: Static[int],
    prefetches: Static[bool],
    streams: Static[bool],
    record: ProductRecord,
    x: int,
    pitch: int,
    w: int,
    params: int,
    out: int,
    columns: int,
    scales: int,
    distance: int,
    ahead: int,
    pieces: int,
    keys: int,
    step: int,
) -> None:
    """So many rows of x times 16 * vectors columns of the weight, of which `columns` exist. streams: with
    each word, weights of so many bytes further are prefetched. ahead, pieces, keys, step: what else is
    (kernels.cpu.attention.planning.kv_prefetch_kernel)."""
    x_rows = [reread(x + pitch * m) for m in unroll(range(rows))]
    words, step_of_scales = record.words >> record.depth, 4 << record.depth
    out_bytes, stride = record.out_bytes, record.columns * record.out_bytes
    word_bytes, across, size = 4 * kind.parts, kind.size * COLUMNS, LANES * kind.size
    if kind.integers:
        sums: list[Any] = [i32x16(0) for _ in unroll(range(rows * vectors))]
    else:
        sums = [f32x16(0.0) for _ in unroll(range(rows * vectors))]
    if prefetches:
        for number in range((words + LINES - 1) // LINES):
            line = first_line(ahead, pieces, keys, number)
            for k in range(LINES * number, min(LINES * number + LINES, words)):
                prefetch(line)
                line += step
                prefetch(line - 64)
                _add_word(kind, rows, vectors, sums, x_rows, word_bytes * k, w + across * k)
    else:
        for k in range(words):
            if streams:
                for v in unroll(range(vectors)):
                    prefetch(w + across * k + distance + size * v)
            _add_word(kind, rows, vectors, sums, x_rows, word_bytes * k, w + across * k)
    for v in unroll(range(vectors)):
        plane, to = params + kind.params_bytes * v, out + LANES * v * out_bytes
        for m in unroll(range(rows)):
            if kind.integers:
                result = dequantized(sums[vectors * m + v], plane, read_f32(scales + step_of_scales * m))
            else:
                result = sums[vectors * m + v]
            store_columns(to + stride * m, out_bytes, result + load_f32(plane), columns - LANES * v)


def _whole_tiles(rows: int, tiles: Static[Tiles]) -> int:
    """How many whole tiles there are, or one less where too few rows would be left behind them."""
    whole = rows // tiles.rows
    if tiles.least_rest and whole > 0 and 0 < rows - whole * tiles.rows < tiles.least_rest:
        return whole - 1
    return whole


def multiply_rows(
    kind: Static[Words],
    vectors: Static[int],
    tiles: Static[Tiles],
    record: ProductRecord,
    x: int,
    pitch: int,
    w: int,
    row: int,
    rows: int,
    strip: int,
    scales: int,
    soon: int,
    soon_tiles: int,
    pieces: int,
    keys: int,
) -> None:
    """Rows of x, from `row` of the result on, times 16 * vectors columns, from `strip` on. x, w: addresses of
    their first words. pitch: bytes from row to row of x, whose words are split into parts.

    soon: the columns that come next. They are prefetched with the first tiles, so many; else the first tile
    waits for memory, and the others leave it idle: 32 rows then take a fifth longer. pieces, keys: what the
    other tiles prefetch, see kernels.cpu.attention.planning.kv_prefetch_kernel.
    """
    words, step_of_scales = record.words >> record.depth, 4 << record.depth
    stride, columns = record.columns * record.out_bytes, record.columns - LANES * strip
    out = record.out + row * stride + LANES * strip * record.out_bytes
    params = record.params + kind.params_bytes * strip
    whole, distance = _whole_tiles(rows, tiles), tiles.distance
    if tiles.distance == 0:
        distance = soon - w
        is_following = distance == words * kind.size * COLUMNS  # else it is another product's
        if is_following and distance > LONG:
            distance = NEAR
    for i in range(whole):
        at = tiles.rows * i
        ahead, listed, step = part_of_tile(i, words, soon, soon_tiles, pieces, w)
        _tile(
            *(kind, tiles.rows, vectors, tiles.prefetches, tiles.distance >= 0, record),
            *(x + pitch * at, pitch, w, params, out + stride * at, columns),
            *(scales + step_of_scales * at, distance, ahead, listed, keys, step),
        )
    done = tiles.rows * whole
    for size, least in unroll(tiles.rest):
        if rows - done >= least:
            _tile(
                *(kind, size, vectors, False, tiles.distance >= 0, record),
                *(x + pitch * done, pitch, w, params, out + stride * done, columns),
                *(scales + step_of_scales * done, distance, 0, 0, 0, 0),
            )
            done += size


def scratch_bytes(words: int, depth: int = 0) -> int:
    """What a thread needs for a product of so many words. depth: of the tree of its leaves."""
    return leaf_bytes(depth) + many_rows.SCRATCH_BYTES + split_bytes(words)


def _inputs(kind: Static[Words], record: LinearRecord, row: int, rows: int, thread: int) -> tuple[int, int]:
    """Address of rows of x as tiles read them, and the bytes from one to the next."""
    words = record.words
    x, pitch = record.x + 4 * words * row, 4 * words
    if kind.parts > 1:
        to = read_i64(record.scratch + 8 * thread) + leaf_bytes(record.depth) + many_rows.SCRATCH_BYTES
        x = split_inputs(kind, x, rows, words, to)
    return x, pitch * kind.parts


def multiply_strips(kind: Static[Words], record: LinearRecord, first: int, count: int, thread: int) -> None:
    """Units of a product: blocks, and strips where a block is not taken whole."""
    words, leaves = record.words >> record.depth, 1 << record.depth
    strips, soon_tiles = (record.columns + LANES - 1) // LANES, SOON * kind.size // 4
    row, strip, end = first // strips * ROWS, first % strips, first % strips + count
    rows, last = min(record.rows - row, ROWS), last_block(strips, thread)
    x, pitch = _inputs(kind, record, row, rows, thread)
    if FEW_REGISTERS:
        strip = multiply_many(kind, record, x, pitch, row, rows, strip, end, thread)
        if kind.has_eights:
            strip = multiply_few(kind, record, x, pitch, row, rows, strip, end, thread)
    to = writing_record(record, record.scratch, thread)
    while strip < end:
        block, inner = strip // VECTORS, strip % VECTORS
        whole = rows <= BLOCK_ROWS and inner == 0 and (strip + VECTORS <= end or end == strips)
        taken = VECTORS if whole else 1
        for leaf in range(leaves):
            number, scales = leaves * block + leaf, record.scales + 4 * (leaves * row + leaf)
            w = record.weight + number * words * kind.size * COLUMNS + LANES * kind.size * inner
            following, x_at = w + words * kind.size * COLUMNS, x + 4 * kind.parts * words * leaf
            soon = following
            if block == last and leaf == leaves - 1:
                soon = following_block(record.following, thread, w)
            begin_leaf(kind.params_bytes, record, to, block, leaf)
            target = LinearRecord.at(to)
            to_row, to_strip = first_written(record, row, strip)
            if whole:
                pieces = pieces_of_block(record.stream, number, words, rows // 8 - soon_tiles)
                keys = PrefetchStream.at(record.stream).keys if pieces else 0
                multiply_rows(
                    *(kind, VECTORS, BLOCK, target, x_at, pitch, w, to_row, rows, to_strip, scales),
                    *(soon, soon_tiles, pieces, keys),
                )
            elif FEW_REGISTERS and kind.has_eights:
                multiply_rows(
                    *(kind, 1, BLOCK, target, x_at, pitch, w, to_row, rows, to_strip, scales),
                    *(soon, 0, 0, 0),
                )
            else:
                multiply_rows(
                    *(kind, 1, STRIP, target, x_at, pitch, w, to_row, rows, to_strip, scales),
                    *(soon, 0, 0, 0),
                )
            end_leaf(kind.params_bytes, record, to, row, rows, strip, taken, leaf)
        strip += taken
