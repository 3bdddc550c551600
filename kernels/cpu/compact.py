"""The product of kernels.compact: weights are read in 12 bits, and computed with in the 16 that they are.

Up to eight rows multiply as they unpack (kernels.cpu.unpacking), while memory delivers the next weights.
More than eight are multiplied as kernels.cpu.linear does it, with a block that the first eight have
unpacked, into a place that stays in the second-level cache.
"""

from typing import Any

from kernels.cpu import types
from kernels.cpu.compiler import operation
from kernels.cpu.kv_prefetch import pieces_of_block
from kernels.cpu.language import intrinsic
from kernels.cpu.linear import packed_block, packed_strip, write_columns
from kernels.cpu.shares import COLUMNS, ROWS, VECTORS, following_block, last_block
from kernels.cpu.unpacking import (
    AHEAD,
    GROUP,
    STRIP,
    WORDS,
    base_in_each,
    lists_of_strips,
    strips_of_group,
    unpack,
    unpack_to,
)
from kernels.cpu.vectors import (
    BF16_PAIRS,
    F32S,
    LANES,
    dot_pairs,
    load,
    pairs_at,
    prefetch,
    read_i64,
    read_u32,
    repeat,
    repeated_pair,
    word,
    write_u32,
    zeros,
)

SOON = 1
"""Tiles of 8 rows, behind the first, in which a block's successor is asked for: 12 bits need fewer."""
FEW, FIRST = 4, 8
"""Rows of the tiles that multiply as they unpack; the second keeps what it unpacks, for further rows."""


@intrinsic(types.void(*[types.int64] * 5))
def _unpack_strip(builder: Any, w: Any, rare: Any, base: Any, groups: Any, out: Any) -> None:
    """As kernels.linear has it. rare: address of the address of its list."""
    bases = base_in_each(builder, base)

    def unpack_group(group: Any, lists: list[Any]) -> list[Any]:
        _ask(builder, w, group, groups, w, STRIP)
        to = builder.add(out, builder.mul(group, word(WORDS * 4 * COLUMNS)))
        return unpack_to(builder, strips_of_group(builder, w, group, bases, lists), to)

    repeat(builder, groups, lists_of_strips(builder, rare, 1), unpack_group)


def _ask(builder: Any, w: Any, group: Any, groups: Any, soon: Any, num_bytes: int) -> None:
    """For so much of a group that comes AHEAD groups later, in this block or in the next one."""
    later = builder.add(group, word(AHEAD))
    behind = builder.sub(later, groups)
    inside = builder.icmp_signed("<", behind, word(0))
    at = builder.add(
        builder.select(inside, w, soon), builder.mul(builder.select(inside, later, behind), word(GROUP))
    )
    for line in range(0, num_bytes, 64):
        prefetch(builder, builder.add(at, word(line)))


def _make_tile(rows: int, vectors: int, keeps: bool = False) -> Any:
    """tile(x, stride, last, w, soon, rare, base, groups, kept, params, out, out_stride, columns, width):
    `rows` rows of 16 * vectors columns. last: number of the last row that exists; those behind it are
    computed as it is. soon: address of the block that comes next. keeps: a block is left at `kept` as
    kernels.linear has it."""

    @intrinsic(types.void(*[types.int64] * 14))
    def tile(
        builder: Any,
        x: Any,
        stride: Any,
        last: Any,
        w: Any,
        soon: Any,
        rare: Any,
        base: Any,
        groups: Any,
        kept: Any,
        params: Any,
        out: Any,
        out_stride: Any,
        columns: Any,
        width: Any,
    ) -> None:
        numbers = [
            builder.select(builder.icmp_signed("<", word(m), last), word(m), last) for m in range(rows)
        ]
        x_rows = [builder.add(x, builder.mul(stride, number)) for number in numbers]
        out_rows = [builder.add(out, builder.mul(out_stride, number)) for number in numbers]
        bases = base_in_each(builder, base)

        def multiply(group: Any, before: list[Any]) -> list[Any]:
            sums = before[:-vectors]
            _ask(builder, w, group, groups, soon, STRIP * vectors)
            strips = strips_of_group(builder, w, group, bases, before[-vectors:])
            if keeps:
                to = builder.add(kept, builder.mul(group, word(WORDS * 4 * COLUMNS)))
                lists = unpack_to(builder, strips, to)
            else:
                unpacked, lists = unpack(builder, strips)
            x_at = builder.mul(group, word(4 * WORDS))
            for place in range(WORDS):
                if keeps:
                    weights = [
                        pairs_at(builder, builder.add(to, word(4 * COLUMNS * place + 64 * v)))
                        for v in range(vectors)
                    ]
                else:
                    weights = [builder.bitcast(words[place], BF16_PAIRS) for words in unpacked]
                for m, row in enumerate(x_rows):
                    pair = repeated_pair(builder, builder.add(builder.add(row, x_at), word(4 * place)))
                    for v in range(vectors):
                        i = m * vectors + v
                        sums[i] = dot_pairs(builder, sums[i], weights[v], pair)
            return [*sums, *lists]

        begin = [*zeros(rows * vectors), *lists_of_strips(builder, rare, vectors)]
        totals = repeat(builder, groups, begin, multiply)
        for v in range(vectors):
            bias = load(builder, builder.add(params, word(64 * v)), F32S)
            results = [builder.fadd(totals[m * vectors + v], bias) for m in range(rows)]
            write_columns(builder, columns, width, v, results, out_rows)

    return tile


_one_row, _one_row_of_strip, _few_rows = _make_tile(1, VECTORS), _make_tile(1, 1), _make_tile(FEW, VECTORS)
_first_rows = _make_tile(FIRST, VECTORS, keeps=True)


@operation
def compact_linear(record: int, first: int, count: int, thread: int) -> None:
    """record: rows, addresses of x, weight, params and result, columns, words, width, addresses of what is
    needed next and of the stream (both as kernels.cpu.linear.linear has them), of the addresses of the
    strips' lists, base, and address of the addresses of each thread's scratch memory (words * 192 bytes).

    As kernels.cpu.linear.linear, with a weight of kernels.compact; words is a multiple of 4.
    """
    rows, x, w = read_i64(record + 8), read_i64(record + 16), read_i64(record + 24)
    params, out, columns = read_i64(record + 32), read_i64(record + 40), read_i64(record + 48)
    words, width, following = read_i64(record + 56), read_i64(record + 64), read_i64(record + 72)
    stream, lists, base = read_i64(record + 80), read_i64(record + 88), read_i64(record + 96)
    scratch = read_i64(read_i64(record + 104) + 8 * thread)
    strips, groups = (columns + LANES - 1) // LANES, words // WORDS
    row = first // strips * ROWS
    strip, end = first % strips, first % strips + count
    x, out = x + row * words * 4, out + row * columns * width
    rows, stride, out_stride = min(rows - row, ROWS), words * 4, columns * width
    final, last = rows - 1, last_block(strips, thread)
    while strip < end:
        block, inner = strip // VECTORS, strip % VECTORS
        w_at = w + block * groups * GROUP + inner * STRIP
        p_at, out_at = params + 64 * strip, out + strip * LANES * width
        list_at, left = lists + 8 * strip, columns - strip * LANES
        soon = following_block(following, thread, w_at) if block == last else w_at + groups * GROUP
        whole = inner == 0 and (strip + VECTORS <= end or end == strips)
        if rows == 1 and whole:
            _one_row(
                x, stride, final, w_at, soon, list_at, base, groups, 0, p_at, out_at, out_stride, left, width
            )
        elif rows == 1:
            _one_row_of_strip(
                x, stride, final, w_at, soon, list_at, base, groups, 0, p_at, out_at, out_stride, left, width
            )
        elif rows <= FEW and whole:
            _few_rows(
                x, stride, final, w_at, soon, list_at, base, groups, 0, p_at, out_at, out_stride, left, width
            )
        elif whole:
            _first_rows(
                x,
                stride,
                final,
                w_at,
                soon,
                list_at,
                base,
                groups,
                scratch,
                p_at,
                out_at,
                out_stride,
                left,
                width,
            )
            if rows > FIRST:
                pieces = pieces_of_block(stream, block, words, (rows - FIRST) // 8 - SOON)
                packed_block(
                    x + FIRST * stride,
                    stride,
                    scratch,
                    soon,
                    SOON,
                    pieces,
                    read_i64(stream + 8) if pieces else 0,
                    p_at,
                    out_at + FIRST * out_stride,
                    out_stride,
                    words,
                    left,
                    width,
                    0,
                    rows - FIRST,
                )
        else:
            _unpack_strip(w_at, list_at, base, groups, scratch)
            packed_strip(
                x, stride, scratch, scratch, 0, 0, 0, p_at, out_at, out_stride, words, left, width, 0, rows
            )
        strip += VECTORS if whole else 1


@operation
def compact_rows(record: int, first: int, count: int, thread: int) -> None:
    """record: rows, addresses of indexes, weight and result, words, address of the addresses of the strips'
    lists, base, address of the addresses of each thread's scratch memory. Rows of a weight as they were.

    Indexes: [rows] int64. Result: [rows, 2 * words] bfloat16.
    """
    indexes, w, out = read_i64(record + 16), read_i64(record + 24), read_i64(record + 32)
    words, lists, base = read_i64(record + 40), read_i64(record + 48), read_i64(record + 56)
    scratch = read_i64(read_i64(record + 64) + 8 * thread)
    groups = words // WORDS
    for row in range(first, first + count):
        index = read_i64(indexes + 8 * row)
        strip = index // LANES
        at = w + strip // VECTORS * groups * GROUP + strip % VECTORS * STRIP
        _unpack_strip(at, lists + 8 * strip, base, groups, scratch)
        for k in range(words):
            write_u32(out + 4 * (row * words + k), read_u32(scratch + 4 * COLUMNS * k + 4 * (index % LANES)))
