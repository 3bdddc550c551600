"""The loops of kernels.cpu.attention.attention on vectors: scores and mixing. kernels.cpu.attention.softmax
is between.

Tiles of 16 positions are found through a list of their addresses: the keys of a part, its values, then
what is needed next. While a tile is computed with, the one that stands `ahead` bytes further in the list is
prefetched, line by line.
"""

from typing import Any

from llvmlite import ir

from kernels.cpu.attention.stored_words import WHOLE, StoredWords
from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa.dot import Dot
from kernels.cpu.isa.vectors import (
    F32S,
    I32,
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
MOST_QUERY = QUERY - 64
"""Bytes of a query."""


def row_values(head_dim: int) -> int:
    """Values of a pair's sums: whole vectors of both loops."""
    return (head_dim + 31) // 32 * 32


def _add_products(builder: Any, dot: Dot, sums: list[Any], words: list[Any], rows: list[Any]) -> list[Any]:
    """The sums, row by row, and the products of vectors of words with a word of each row. rows: addresses."""
    totals = list(sums)
    of_words = [dot.weights(builder, vector) for vector in words]
    of_rows = [dot.inputs(builder, broadcast(builder, load(builder, at, I32))) for at in rows]
    for part in range(dot.parts):
        for i in range(len(sums)):
            row, vector = divmod(i, len(words))
            totals[i] = dot.add(builder, totals[i], of_words[vector][part], of_rows[row][part])
    return totals


def make_scores(dot: Dot, rows: int, side: int, stored: StoredWords = WHOLE) -> Any:
    """scores(q, tiles, count, ahead, out, words): 16 positions of each of `count` tiles, for each of the
    rows. q: of a row [words] pairs of bfloat16 or float32, QUERY bytes from row to row. tiles: address of
    their list. So many tiles side by side: sums of few rows would wait for one another. Where they do not
    divide the count, one tile more is computed. stored: how the cache holds words."""

    @intrinsic(types.void(*[types.int64] * 6))
    def scores(builder: Any, q: Any, tiles: Any, count: Any, ahead: Any, out: Any, words: Any) -> None:
        def score_tiles(step: Any, nothing: list[Any]) -> list[Any]:
            entry = builder.add(tiles, builder.mul(step, word(8 * side)))
            entries = [builder.add(entry, word(8 * i)) for i in range(side)]
            keys = [load(builder, at, I64) for at in entries]
            later = [load(builder, builder.add(at, ahead), I64) for at in entries]

            def add_pairs(k: Any, sums: list[Any]) -> list[Any]:
                offset = builder.mul(k, word(stored.size))
                for at in later:
                    prefetch(builder, builder.add(at, offset))
                pairs = [stored.load(builder, builder.add(at, offset)) for at in keys]
                q_at = builder.add(q, builder.mul(k, word(4)))
                at_rows = [builder.add(q_at, word(QUERY * m)) for m in range(rows)]
                return _add_products(builder, dot, sums, pairs, at_rows)

            to = builder.add(out, builder.mul(step, word(64 * side)))
            for number, total in enumerate(repeat(builder, words, zeros(rows * side), add_pairs)):
                offset = SCORES * (number // side) + 64 * (number % side)
                store(builder, total, builder.add(to, word(offset)))
            return nothing

        repeat(builder, builder.sdiv(builder.add(count, word(side - 1)), word(side)), [], score_tiles)

    return scores


def make_mix(dot: Dot, steps: int, rows: int, vectors: int, stored: StoredWords = WHOLE) -> Any:
    """mix(p, tiles, ahead, column, stride, sums, width, count): adds p * v of so many steps to 16 * vectors
    columns of the rows' sums.

    A step is a pair of positions of bfloat16, or one of float32; a tile has `steps` of them. tiles: address
    of the list of values. column: bytes before the first. stride: bytes of a step's values, as whole words.
    width: bytes of a row of sums. stored: how the cache holds words."""
    shift, packing = steps.bit_length() - 1, (64 // stored.size).bit_length() - 1

    @intrinsic(types.void(*[types.int64] * 8))
    def mix(
        builder: Any,
        p: Any,
        tiles: Any,
        ahead: Any,
        column: Any,
        stride: Any,
        sums: Any,
        width: Any,
        count: Any,
    ) -> None:
        to = builder.add(sums, column)
        at = [
            builder.add(builder.add(to, builder.mul(width, word(m))), word(64 * v))
            for m in range(rows)
            for v in range(vectors)
        ]

        def add_step(k: Any, before: list[Any]) -> list[Any]:
            entry = builder.add(tiles, builder.mul(builder.lshr(k, word(shift)), word(8)))
            offset = builder.add(column, builder.mul(builder.and_(k, word(steps - 1)), stride))
            if packing:
                offset = builder.lshr(offset, word(packing))
            v_at, later = (
                builder.add(load(builder, address, I64), offset)
                for address in (entry, builder.add(entry, ahead))
            )
            for v in range(vectors):
                prefetch(builder, builder.add(later, word(stored.size * v)))
            values = [stored.load(builder, builder.add(v_at, word(stored.size * v))) for v in range(vectors)]
            p_at = builder.add(p, builder.mul(k, word(4)))
            return _add_products(
                builder, dot, before, values, [builder.add(p_at, word(SCORES * m)) for m in range(rows)]
            )

        totals = repeat(builder, count, [load(builder, address, F32S) for address in at], add_step)
        for total, address in zip(totals, at, strict=True):
            store(builder, total, address)

    return mix


def make_copy_first_halves(kind: Any) -> Any:
    """copy_first_halves(source, to, vectors): so many times 16 pairs, the second of each replaced by 0. kind:
    a vector of pairs, such as I32S."""
    half = kind.element.width // 2
    mask = ir.Constant(kind, [(1 << half) - 1] * LANES)

    @intrinsic(types.void(*[types.int64] * 3))
    def copy_first_halves(builder: Any, source: Any, to: Any, vectors: Any) -> None:
        def move(v: Any, nothing: list[Any]) -> list[Any]:
            at = builder.mul(v, word(4 * half))
            halves = builder.and_(load(builder, builder.add(source, at), kind), mask)
            store(builder, halves, builder.add(to, at))
            return nothing

        repeat(builder, vectors, [], move)

    return copy_first_halves


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
