"""The second pass of kernels.cpu.attention.attention: scores of a part become weights, those of all pairs
side by side.

    weight  e ** x, of x = score * scale - largest: a bfloat16 to 1.0e-4 of it, or as exact as float32 is
            (kernels.cpu.isa.exp)

What a pair does not see has the score NOTHING, and the weight 0 exactly. Before that scores may be capped,
and after all parts of a row a sink, a key whose value is zero, may be added:

    score   cap * tanh(scale * score / cap), divided by the scale again: softmax multiplies by it
    total   + e ** (sink - largest)

Rows are pairs, SCORES bytes from one to the next. All at once take a fifth less time than one after the
other in a part of 512 positions, a third less in one of 64: their lanes are put together at the same time.
"""

import math

from kernels.cpu.attention.sizes import SCORES
from kernels.cpu.compiler.language import Static, float32, unroll
from kernels.cpu.compiler.vectors import f32x16, i32x16
from kernels.cpu.elementwise.elements import Element
from kernels.cpu.isa.exp import BIAS, EXPONENT_UNIT, capped, precise_exp, rough_exponent, rough_fraction
from kernels.cpu.isa.lanes import constant_i32, larger
from kernels.cpu.isa.shuffles import lane_of, reduce_rows, repeat_lane
from kernels.cpu.isa.simd import fma, load_f32, prefetch, select, store_f32, store_first_f32
from kernels.cpu.isa.vectors import LANES, read_f32, read_i64, read_u32, write_f32

NOTHING = float("-inf")
"""The score of a position that a pair does not see, and the largest one where it sees none."""
LOWEST = -1e30
"""Below every score; in units of the last bit of its logarithm it is still a float32."""
_numbers = constant_i32(range(LANES))
_UNIT, _ONE = math.log2(math.e) * EXPONENT_UNIT, BIAS * EXPONENT_UNIT


def add(x: f32x16, y: f32x16) -> f32x16:
    """x + y."""
    return x + y


def at_least_lowest(scores: f32x16) -> f32x16:
    """-inf minus -inf would be NaN."""
    return larger(scores, f32x16(LOWEST))


def soften(
    element: Static[Element],
    rows: Static[int],
    asks: Static[bool],
    scores: int,
    tiles: int,
    scale: float,
    totals: int,
    soon: int,
) -> None:
    """element: of weights. asks: for what is needed soon."""
    found = [f32x16(NOTHING) for _ in unroll(range(rows))]
    for tile in range(tiles):
        for m in unroll(range(rows)):
            if asks:
                _ask_two_lines(soon + 8 * m, tile)
            found[m] = larger(load_f32(scores + 64 * tile + SCORES * m), found[m])
    largest = reduce_rows(larger, found) * f32x16(scale)
    store_first_f32(totals + 64, largest, rows)
    factor, shift = _factor(element, scale), _shift(element, largest)
    shifts = [repeat_lane(shift, m) for m in unroll(range(rows))]
    sums = [f32x16(0.0) for _ in unroll(range(rows))]
    for tile in range(tiles):
        for m in unroll(range(rows)):
            weights = _weights(element, fma(load_f32(scores + 64 * tile + SCORES * m), factor, shifts[m]))
            # As long as the scores, or half as long: what is still to be read stays.
            element.store(scores + LANES * element.size * tile + SCORES * m, weights)
            sums[m] = sums[m] + weights
    store_first_f32(totals, reduce_rows(add, sums), rows)


def _ask_two_lines(entry: int, number: int) -> None:
    """The two with that number, of the tile whose address lies at `entry`."""
    at = read_i64(entry) + 128 * number
    prefetch(at)
    prefetch(at + 64)


def _factor(element: Static[Element], scale: float) -> f32x16:
    """What scores are multiplied with."""
    if element.size == 2:
        return f32x16(scale) * _UNIT
    return f32x16(scale)


def _shift(element: Static[Element], largest: f32x16) -> f32x16:
    """What is added then. largest: score times the scale of pair m in lane m."""
    if element.size == 2:
        return f32x16(_ONE) - at_least_lowest(largest) * _UNIT
    return -at_least_lowest(largest)


def _weights(element: Static[Element], exponents: f32x16) -> f32x16:
    """Of scores, so changed."""
    if element.size == 2:
        return rough_fraction(exponents) * rough_exponent(exponents)
    return precise_exp(exponents)


def _hide(rows: Static[int], scores: int, tile: int, tiles: int, base: int, seen: int) -> None:
    for number in range(tile, tile + tiles):
        position = _numbers() + (base + LANES * number)
        for m in unroll(range(rows)):
            at = scores + 64 * number + SCORES * m
            first, last = i32x16(read_u32(seen + 4 * m)), i32x16(read_u32(seen + 32 + 4 * m))
            visible = (position >= first) & (position <= last)
            store_f32(at, select(visible, load_f32(at), f32x16(NOTHING)))


def hide_unseen(scores: int, tile: int, tiles: int, pairs: int, base: int, seen: int) -> None:
    """Of so many tiles from `tile` on, all positions that a pair does not see get the score NOTHING. base:
    position of the first tile of all. seen: address of the first position that each pair sees, [8] int32, and
    of the last ones behind them. Scores of pairs behind these may change."""
    if pairs > 6:
        _hide(8, scores, tile, tiles, base, seen)
    elif pairs > 4:
        _hide(6, scores, tile, tiles, base, seen)
    elif pairs > 3:
        _hide(4, scores, tile, tiles, base, seen)
    else:
        _hide(3, scores, tile, tiles, base, seen)


_LARGEST_SINK = 80.0
"""Above it e ** x is nearly infinite: a sink that outweighs everything by so much leaves nothing."""


def cap_scores(scores: int, tiles: int, pairs: int, scale: float, cap: float) -> None:
    """Caps the scores of so many pairs, [16 * tiles] float32 each, SCORES bytes from one to the next."""
    for pair in range(pairs):
        first = scores + SCORES * pair
        for at in range(first, first + 64 * tiles, 64):
            store_f32(at, capped(load_f32(at) * scale, cap) / scale)


def add_sink(total: int, sink: int) -> None:
    """Adds the weight of a sink to the sum of a pair's weights. total: address of the sum, float32, with the
    pair's largest score 64 bytes behind it. sink: address of the sink's score, float32."""
    above = min(_LARGEST_SINK, float32(read_f32(sink) - read_f32(total + 64)))
    weight = lane_of(precise_exp(f32x16(above)), 0)
    write_f32(total, float32(read_f32(total) + weight))
