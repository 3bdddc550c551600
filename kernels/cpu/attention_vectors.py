"""The loops of kernels.cpu.attention on vectors: scores, softmax, mixing.

Tiles of 16 positions are found through a list of their addresses: the keys of a part, its values, then
what is needed next. While a tile is computed with, the one that stands `ahead` bytes further in the list is
asked for from memory, line by line.
"""

import math
from typing import Any

from llvmlite import ir

from kernels.cpu import types
from kernels.cpu.language import intrinsic
from kernels.cpu.vectors import (
    F32,
    F32S,
    I32,
    I32S,
    I64,
    LANES,
    broadcast,
    call,
    dot_pairs,
    exp2,
    load,
    pairs_at,
    prefetch,
    repeat,
    repeated_pair,
    rounded,
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
NOTHING = float("-inf")
"""The largest score where no position is visible."""
LOWEST = -2e38
"""Below every score; times log2(e) it is still a float32."""


def _make_scores(rows: int, side: int) -> Any:
    """scores(q, tiles, count, ahead, out, words): 16 positions of each of `count` tiles, for each of the
    rows. q: [words, 8] pairs of bfloat16. tiles: address of their list. So many tiles side by side: sums of
    few rows would wait for one another. Where they do not divide the count, one tile more is computed."""

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
                pairs = [pairs_at(builder, builder.add(at, offset)) for at in keys]
                q_at = builder.add(q, builder.mul(k, word(4 * QUERIES)))
                after = []
                for m in range(rows):
                    pair = repeated_pair(builder, builder.add(q_at, word(4 * m)))
                    of_row = zip(sums[m * side : (m + 1) * side], pairs, strict=True)
                    after += [dot_pairs(builder, total, one, pair) for total, one in of_row]
                return after

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
            values = [pairs_at(builder, builder.add(v_at, word(64 * v))) for v in range(vectors)]
            p_at = builder.add(p, builder.mul(k, word(4)))
            after = []
            for m in range(rows):
                pair = repeated_pair(builder, builder.add(p_at, word(SCORES * m)))
                of_row = zip(before[m * vectors : (m + 1) * vectors], values, strict=True)
                after += [dot_pairs(builder, total, one, pair) for total, one in of_row]
            return after

        totals = repeat(builder, pairs, [load(builder, address, F32S) for address in at], add_pairs)
        for total, address in zip(totals, at, strict=True):
            store(builder, total, address)

    return mix


scores_3, scores_4, scores_6, scores_8 = (
    _make_scores(rows, side) for rows, side in ((3, 2), (4, 2), (6, 2), (8, 1))
)
mix_3, mix_4, mix_6, mix_8 = (_make_mix(rows, vectors) for rows, vectors in ((3, 4), (4, 4), (6, 2), (8, 2)))


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


@intrinsic(types.void(*[types.int64] * 5))
def hide(builder: Any, scores: Any, tile: Any, tiles: Any, first: Any, last: Any) -> None:
    """Of so many tiles from `tile` on, all positions but first .. last: their scores become NOTHING."""
    bounds = [broadcast(builder, builder.trunc(bound, I32)) for bound in (first, last)]
    lanes = ir.Constant(I32S, list(range(LANES)))
    hidden = ir.Constant(F32S, [NOTHING] * LANES)

    def hide_some(number: Any, nothing: list[Any]) -> list[Any]:
        own = builder.add(tile, number)
        at = builder.add(scores, builder.mul(own, word(64)))
        begin = broadcast(builder, builder.trunc(builder.mul(own, word(LANES)), I32))
        position = builder.add(lanes, begin)
        seen = builder.and_(
            builder.icmp_signed(">=", position, bounds[0]), builder.icmp_signed("<=", position, bounds[1])
        )
        store(builder, builder.select(seen, load(builder, at, F32S), hidden), at)
        return nothing

    repeat(builder, tiles, [], hide_some)


def _make_softmax(asking: bool) -> Any:
    """softmax(scores, tiles, scale, total, soon). scores: of [16 * tiles] float32, replaced by weights in
    bfloat16, relative to the largest score, and 0 for NOTHING; their sum goes to `total`, the largest score
    times the scale 64 bytes behind it. scale: float32. soon: address of a tile; two lines of it are asked for
    with each tile, if this is `asking`."""

    @intrinsic(types.void(types.int64, types.int64, types.float32, types.int64, types.int64))
    def softmax(builder: Any, scores: Any, tiles: Any, scale: Any, total: Any, soon: Any) -> None:
        factor = broadcast(builder, scale)

        def find_largest(tile: Any, before: list[Any]) -> list[Any]:
            at = builder.add(scores, builder.mul(tile, word(64)))
            for line in range(2 if asking else 0):
                prefetch(
                    builder, builder.add(soon, builder.add(builder.mul(tile, word(128)), word(64 * line)))
                )
            scaled = builder.fmul(load(builder, at, F32S), factor)
            return [builder.select(builder.fcmp_ordered(">", scaled, before[0]), scaled, before[0])]

        hidden = ir.Constant(F32S, [NOTHING] * LANES)
        (by_lane,) = repeat(builder, tiles, [hidden], find_largest)
        largest = call(builder, "llvm.vector.reduce.fmax.v16f32", F32, by_lane)
        store(builder, largest, builder.add(total, word(64)))
        base_2 = ir.Constant(F32, math.log2(math.e))
        subtracted = broadcast(builder, builder.fmul(at_least_lowest(builder, largest), base_2))
        subtracted, factor_2 = builder.fneg(subtracted), broadcast(builder, builder.fmul(scale, base_2))

        def weigh(tile: Any, before: list[Any]) -> list[Any]:
            at = builder.add(scores, builder.mul(tile, word(64)))
            exponent = call(builder, "llvm.fma.v16f32", F32S, load(builder, at, F32S), factor_2, subtracted)
            weights = exp2(builder, exponent, 4)
            # Half as long as the scores: what is still to be read stays.
            store(builder, rounded(builder, weights), builder.add(scores, builder.mul(tile, word(32))))
            return [builder.fadd(before[0], weights)]

        (sums,) = repeat(builder, tiles, zeros(1), weigh)
        store(builder, _sum_of_lanes(builder, sums), total)

    return softmax


softmax, asking_softmax = _make_softmax(False), _make_softmax(True)


def _sum_of_lanes(builder: Any, values: Any) -> Any:
    """In pairs, pairs of pairs, ...: one after the other they would wait for each other."""
    nothing = ir.Constant(F32S, ir.Undefined)
    for distance in (8, 4, 2, 1):
        lanes = ir.Constant(I32S, [(lane + distance) % LANES for lane in range(LANES)])
        values = builder.fadd(values, builder.shuffle_vector(values, nothing, lanes))
    return builder.extract_element(values, ir.Constant(I32, 0))


def at_least_lowest(builder: Any, score: Any) -> Any:
    """-inf minus -inf would be NaN. One score, or a vector of them."""
    lowest = ir.Constant(F32, LOWEST) if score.type == F32 else ir.Constant(F32S, [LOWEST] * LANES)
    return builder.select(builder.fcmp_ordered(">", score, lowest), score, lowest)
