"""The second pass of kernels.cpu.attention.attention: scores of a part become weights, those of all pairs
side by side.

    weight  e ** x, of x = score * scale - largest: a bfloat16 to 1.0e-4 of it, or as exact as float32 is
            (kernels.cpu.isa.exp)

What a pair does not see has the score NOTHING, and the weight 0 exactly.

Rows are pairs, SCORES bytes from one to the next. All at once take a fifth less time than one after the
other in a part of 512 positions, a third less in one of 64: their lanes are put together at the same time.
"""

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from kernels.cpu.attention.vector_loops import SCORES
from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa.exp import BIAS, EXPONENT_UNIT, exp, rough_power
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.vectors import (
    BITS,
    F32,
    F32S,
    I32,
    I32S,
    I64,
    LANES,
    broadcast,
    call,
    load,
    prefetch,
    repeat,
    store,
    store_lanes,
    word,
    zeros,
)

NOTHING = float("-inf")
"""The score of a position that a pair does not see, and the largest one where it sees none."""
LOWEST = -1e30
"""Below every score; in units of the last bit of its logarithm it is still a float32."""


def at_least_lowest(builder: Any, score: Any) -> Any:
    """-inf minus -inf would be NaN. One score, or a vector of them."""
    lowest = ir.Constant(F32, LOWEST) if score.type == F32 else ir.Constant(F32S, [LOWEST] * LANES)
    return builder.select(builder.fcmp_ordered(">", score, lowest), score, lowest)


def _make_hide(rows: int) -> Any:
    """hide(scores, tile, tiles, base, seen): see hide_unseen()."""

    @intrinsic(types.void(*[types.int64] * 5))
    def hide(builder: Any, scores: Any, tile: Any, tiles: Any, base: Any, seen: Any) -> None:
        lanes = ir.Constant(I32S, list(range(LANES)))
        nothing = ir.Constant(F32S, [NOTHING] * LANES)

        def hide_some(number: Any, empty: list[Any]) -> list[Any]:
            own = builder.add(tile, number)
            begin = builder.trunc(builder.add(base, builder.mul(own, word(LANES))), I32)
            position = builder.add(lanes, broadcast(builder, begin))
            for m in range(rows):
                first, last = (
                    broadcast(builder, load(builder, builder.add(seen, word(offset + 4 * m)), I32))
                    for offset in (0, 32)
                )
                visible = builder.and_(
                    builder.icmp_signed(">=", position, first), builder.icmp_signed("<=", position, last)
                )
                at = _place(builder, scores, own, m, 64)
                store(builder, builder.select(visible, load(builder, at, F32S), nothing), at)
            return empty

        repeat(builder, tiles, [], hide_some)

    return hide


def make_softmax(size: int, rows: int, asking: bool = True) -> Any:
    """softmax(scores, tiles, scale, totals, soon): see kernels.cpu.attention.tiles.weigh_tiles(). size: bytes
    of a weight. asking: for what is needed soon."""

    @intrinsic(types.void(types.int64, types.int64, types.float32, types.int64, types.int64))
    def softmax(builder: Any, scores: Any, tiles: Any, scale: Any, totals: Any, soon: Any) -> None:
        def find_largest(tile: Any, before: list[Any]) -> list[Any]:
            after = []
            for m in range(rows):
                if asking:
                    _ask_two_lines(builder, builder.add(soon, word(8 * m)), tile)
                score = load(builder, _place(builder, scores, tile, m, 64), F32S)
                after.append(_larger(builder, score, before[m]))
            return after

        found = repeat(builder, tiles, [ir.Constant(F32S, [NOTHING] * LANES)] * rows, find_largest)
        largest = builder.fmul(of_lanes(builder, found, _larger), broadcast(builder, scale))
        store_lanes(builder, largest, builder.add(totals, word(64)), _first(rows))
        weights_of = (_rough_weights if size == 2 else _precise_weights)(builder, scale, largest)

        def weigh(tile: Any, before: list[Any]) -> list[Any]:
            after = []
            for m in range(rows):
                weights = weights_of(load(builder, _place(builder, scores, tile, m, 64), F32S), m)
                rounded = OPERATIONS.round_to_bfloat16(builder, weights) if size == 2 else weights
                # As long as the scores, or half as long: what is still to be read stays.
                store(builder, rounded, _place(builder, scores, tile, m, LANES * size))
                after.append(builder.fadd(before[m], weights))
            return after

        sums = repeat(builder, tiles, zeros(rows), weigh)
        store_lanes(builder, of_lanes(builder, sums, add_vectors), totals, _first(rows))

    return softmax


def _rough_weights(builder: Any, scale: Any, largest: Any) -> Callable[[Any, int], Any]:
    """(scores, m): weights of pair m, for bfloat16. largest: score times the scale of pair m in lane m."""
    unit = ir.Constant(F32, math.log2(math.e) * EXPONENT_UNIT)
    bits = builder.fmul(at_least_lowest(builder, largest), broadcast(builder, unit))
    shift = builder.fsub(ir.Constant(F32S, [BIAS * EXPONENT_UNIT] * LANES), bits)
    shifts = _each_lane(builder, shift)
    factor = broadcast(builder, builder.fmul(scale, unit))

    def weights_of(scores: Any, m: int) -> Any:
        return builder.fmul(
            *rough_power(builder, call(builder, "llvm.fma.v16f32", F32S, scores, factor, shifts[m]))
        )

    return weights_of


def _precise_weights(builder: Any, scale: Any, largest: Any) -> Callable[[Any, int], Any]:
    """As _rough_weights(), for float32."""
    shifts = _each_lane(builder, builder.fneg(at_least_lowest(builder, largest)))
    factor = broadcast(builder, scale)

    def weights_of(scores: Any, m: int) -> Any:
        return exp(builder, call(builder, "llvm.fma.v16f32", F32S, scores, factor, shifts[m]))

    return weights_of


def _each_lane(builder: Any, values: Any) -> list[Any]:
    """Each of the first 8 lanes as a vector of its own."""
    return [_shuffled(builder, values, values, [m] * LANES) for m in range(8)]


def _place(builder: Any, scores: Any, tile: Any, row: int, size: int) -> Any:
    """Of a row's tile of so many bytes."""
    return builder.add(builder.add(scores, builder.mul(tile, word(size))), word(SCORES * row))


def _ask_two_lines(builder: Any, entry: Any, number: Any) -> None:
    """The two with that number, of the tile whose address lies at `entry`."""
    at = builder.add(load(builder, entry, I64), builder.mul(number, word(128)))
    for line in range(2):
        prefetch(builder, builder.add(at, word(64 * line)))


def _larger(builder: Any, one: Any, other: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", one, other), one, other)


def add_vectors(builder: Any, one: Any, other: Any) -> Any:
    return builder.fadd(one, other)


def _first(rows: int) -> Any:
    """A mask of so many lanes."""
    return ir.Constant(BITS, [lane < rows for lane in range(LANES)])


def _shuffled(builder: Any, one: Any, other: Any, lanes: list[int]) -> Any:
    """Lanes of two vectors; those of the other one are numbered from LANES on."""
    return builder.shuffle_vector(one, other, ir.Constant(I32S, lanes))


def of_lanes(builder: Any, rows: list[Any], join: Callable[[Any, Any, Any], Any]) -> Any:
    """All lanes of each row as one, in lane m that of row m. Halves of a row are joined, halves of these, ...
    until one lane is left: those of two rows at a time, which then share a vector.

        a0 .. a7 a8 .. a15    a0 .. a7 b0 .. b7      a0 .. a3 b0 .. b3 c0 .. c3 d0 .. d3
        b0 .. b7 b8 .. b15    a8 .. a15 b8 .. b15    a4 .. a7 ...
    """
    vectors = rows + rows[:1] * ((4 if len(rows) <= 4 else 8) - len(rows))
    width, step = LANES, LANES // len(vectors)
    while width > 1:
        half = width // 2
        if len(vectors) > 1:
            lower = [first + i for first in range(0, 2 * LANES, width) for i in range(half)]
            vectors = [
                join(
                    builder,
                    _shuffled(builder, one, other, lower),
                    _shuffled(builder, one, other, [lane + half for lane in lower]),
                )
                for one, other in zip(vectors[::2], vectors[1::2], strict=True)
            ]
        else:
            swapped = _shuffled(builder, vectors[0], vectors[0], [lane ^ half for lane in range(LANES)])
            vectors = [join(builder, vectors[0], swapped)]
        width = half
    return _shuffled(builder, vectors[0], vectors[0], [lane * step % LANES for lane in range(LANES)])


_hide_3, _hide_4, _hide_6, _hide_8 = (_make_hide(rows) for rows in (3, 4, 6, 8))


def hide_unseen(scores: int, tile: int, tiles: int, pairs: int, base: int, seen: int) -> None:
    """Of so many tiles from `tile` on, all positions that a pair does not see get the score NOTHING. base:
    position of the first tile of all. seen: address of the first position that each pair sees, [8] int32, and
    of the last ones behind them. Scores of pairs behind these may change."""
    if pairs > 6:
        _hide_8(scores, tile, tiles, base, seen)
    elif pairs > 4:
        _hide_6(scores, tile, tiles, base, seen)
    elif pairs > 3:
        _hide_4(scores, tile, tiles, base, seen)
    else:
        _hide_3(scores, tile, tiles, base, seen)
