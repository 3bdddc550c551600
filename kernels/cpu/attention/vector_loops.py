"""The loops of kernels.cpu.attention.attention on vectors: scores and mixing. kernels.cpu.attention.softmax
is between.

Tiles of 16 positions are found through a list of their addresses: the keys of a part, its values, then
what is needed next. While a tile is computed with, the one that stands `ahead` bytes further in the list is
prefetched, line by line.
"""

from typing import Any

from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.vectors import (
    F32S,
    I32,
    I32S,
    I64,
    LANES,
    broadcast,
    load,
    prefetch,
    repeat,
    store,
    word,
    zeros,
)

PART = 512
"""Positions. A prompt's attention takes 4 % longer in parts of 256, which are found and merged more often. In
parts of 512 two threads share 3000 positions of a row evenly, and scores stay in the first-level cache."""
QUERIES = 8
"""(query, head) pairs of an item: registers are enough for so many."""
SCORES = 64 * (PART // LANES + 1)
"""Bytes of a pair's scores; one tile more than there are: see _make_scores(). A constant, as the queries'
distances are: an address for each pair would take more registers than there are."""
QUERY = 1024 + 64
"""Bytes from one query of an item to the next: a constant too. A power of two would have all of them in the
same few places of the first-level cache."""
MOST_HEAD_DIM = (QUERY - 64) // 2


def _add_products(builder: Any, sums: list[Any], words: list[Any], rows: list[Any]) -> list[Any]:
    """The sums, row by row, and the products of vectors of words with a word of each row. rows: addresses."""
    dot, totals = OPERATIONS.pairs, list(sums)
    of_words = [dot.weights(builder, vector) for vector in words]
    of_rows = [dot.inputs(builder, broadcast(builder, load(builder, at, I32))) for at in rows]
    for part in range(dot.parts):
        for i in range(len(sums)):
            row, vector = divmod(i, len(words))
            totals[i] = dot.add(builder, totals[i], of_words[vector][part], of_rows[row][part])
    return totals


def _make_scores(rows: int, side: int) -> Any:
    """scores(q, tiles, count, ahead, out, words): 16 positions of each of `count` tiles, for each of the
    rows. q: of a row [words] pairs of bfloat16, QUERY bytes from row to row. tiles: address of their list. So
    many tiles side by side: sums of few rows would wait for one another. Where they do not divide the count,
    one tile more is computed."""

    @intrinsic(types.void(*[types.int64] * 6))
    def scores(builder: Any, q: Any, tiles: Any, count: Any, ahead: Any, out: Any, words: Any) -> None:
        def score_tiles(step: Any, nothing: list[Any]) -> list[Any]:
            entry = builder.add(tiles, builder.mul(step, word(8 * side)))
            entries = [builder.add(entry, word(8 * i)) for i in range(side)]
            keys = [load(builder, at, I64) for at in entries]
            later = [load(builder, builder.add(at, ahead), I64) for at in entries]

            def add_pairs(k: Any, sums: list[Any]) -> list[Any]:
                offset = builder.mul(k, word(64))
                for at in later:
                    prefetch(builder, builder.add(at, offset))
                pairs = [load(builder, builder.add(at, offset), I32S) for at in keys]
                q_at = builder.add(q, builder.mul(k, word(4)))
                at_rows = [builder.add(q_at, word(QUERY * m)) for m in range(rows)]
                return _add_products(builder, sums, pairs, at_rows)

            to = builder.add(out, builder.mul(step, word(64 * side)))
            for number, total in enumerate(repeat(builder, words, zeros(rows * side), add_pairs)):
                offset = SCORES * (number // side) + 64 * (number % side)
                store(builder, total, builder.add(to, word(offset)))
            return nothing

        repeat(builder, builder.sdiv(builder.add(count, word(side - 1)), word(side)), [], score_tiles)

    return scores


def _make_mix(rows: int, vectors: int) -> Any:
    """mix(p, tiles, ahead, column, stride, sums, pairs): adds p * v of so many pairs of positions
    to 16 * vectors columns of the rows' sums. tiles: address of the list of values. column: bytes before the
    first. stride: bytes of a pair of values, and of a row of sums."""

    @intrinsic(types.void(*[types.int64] * 7))
    def mix(
        builder: Any,
        p: Any,
        tiles: Any,
        ahead: Any,
        column: Any,
        stride: Any,
        sums: Any,
        pairs: Any,
    ) -> None:
        to = builder.add(sums, column)
        at = [
            builder.add(builder.add(to, builder.mul(stride, word(m))), word(64 * v))
            for m in range(rows)
            for v in range(vectors)
        ]

        def add_pairs(k: Any, before: list[Any]) -> list[Any]:
            entry = builder.add(tiles, builder.mul(builder.lshr(k, word(3)), word(8)))
            offset = builder.add(column, builder.mul(builder.and_(k, word(7)), stride))
            v_at, later = (
                builder.add(load(builder, address, I64), offset)
                for address in (entry, builder.add(entry, ahead))
            )
            for v in range(vectors):
                prefetch(builder, builder.add(later, word(64 * v)))
            values = [load(builder, builder.add(v_at, word(64 * v)), I32S) for v in range(vectors)]
            p_at = builder.add(p, builder.mul(k, word(4)))
            return _add_products(
                builder, before, values, [builder.add(p_at, word(SCORES * m)) for m in range(rows)]
            )

        totals = repeat(builder, pairs, [load(builder, address, F32S) for address in at], add_pairs)
        for total, address in zip(totals, at, strict=True):
            store(builder, total, address)

    return mix


_sides, _vectors = OPERATIONS.score_tiles, OPERATIONS.mix_vectors
scores_3, scores_4, scores_6 = (_make_scores(rows, _sides[rows]) for rows in (3, 4, 6))
mix_3, _mix_4, mix_6 = (_make_mix(rows, _vectors[rows]) for rows in (3, 4, 6))
FEW_COLUMNS, MANY_COLUMNS = 64 * _vectors[3], 64 * _vectors[6]
"""Bytes of a pair of values that mix_3() and mix_4() go over at once, and that mix_6() and mix_8() do."""
_COLUMNS = 64 * _vectors[4]


def _scores_8(q: int, tiles: int, count: int, ahead: int, out: int, words: int) -> None:
    """Where registers are too few for eight pairs."""
    scores_4(q, tiles, count, ahead, out, words)
    scores_4(q + 4 * QUERY, tiles, count, ahead, out + 4 * SCORES, words)


def mix_4(p: int, tiles: int, ahead: int, column: int, stride: int, sums: int, pairs: int) -> None:
    """FEW_COLUMNS bytes of values."""
    for at in range(column, column + FEW_COLUMNS, _COLUMNS):
        _mix_4(p, tiles, ahead, at, stride, sums, pairs)


def _mix_8(p: int, tiles: int, ahead: int, column: int, stride: int, sums: int, pairs: int) -> None:
    """Where registers are too few for eight pairs."""
    _mix_4(p, tiles, ahead, column, stride, sums, pairs)
    _mix_4(p + 4 * SCORES, tiles, ahead, column, stride, sums + 4 * stride, pairs)


scores_8 = _make_scores(8, _sides[8]) if 8 in _sides else _scores_8
mix_8 = _make_mix(8, _vectors[8]) if 8 in _vectors else _mix_8


@intrinsic(types.void(*[types.int64] * 3))
def copy_first_halves(builder: Any, source: Any, to: Any, vectors: Any) -> None:
    """So many times 16 pairs, the second of each replaced by 0."""
    mask = ir.Constant(I32S, [0xFFFF] * LANES)

    def move(v: Any, nothing: list[Any]) -> list[Any]:
        at = builder.mul(v, word(64))
        halves = builder.and_(load(builder, builder.add(source, at), I32S), mask)
        store(builder, halves, builder.add(to, at))
        return nothing

    repeat(builder, vectors, [], move)


@intrinsic(types.void(*[types.int64] * 3))
def copy(builder: Any, source: Any, to: Any, vectors: Any) -> None:
    """So many times 64 bytes."""

    def move(v: Any, nothing: list[Any]) -> list[Any]:
        at = builder.mul(v, word(64))
        store(builder, load(builder, builder.add(source, at), F32S), builder.add(to, at))
        return nothing

    repeat(builder, vectors, [], move)


@intrinsic(types.void(*[types.int64] * 2))
def clear(builder: Any, to: Any, vectors: Any) -> None:
    """So many times 64 bytes."""

    def write(v: Any, nothing: list[Any]) -> list[Any]:
        store(builder, zeros(1)[0], builder.add(to, builder.mul(v, word(64))))
        return nothing

    repeat(builder, vectors, [], write)


@intrinsic(types.void(*[types.int64] * 2))
def ask(builder: Any, address: Any, lines: Any) -> None:
    """For so many cache lines."""

    def ask_one(line: Any, nothing: list[Any]) -> list[Any]:
        prefetch(builder, builder.add(address, builder.mul(line, word(64))))
        return nothing

    repeat(builder, lines, [], ask_one)
