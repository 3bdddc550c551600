"""The products of kernels.cpu.attention.attention for any number of (query, head) pairs: scores, and mixed
values; and the weights between.

A loop computes a fixed number of pairs, of which some may be unused: with three pairs, a loop for four
takes a third longer. The loops that there are: 3 pairs, 4, 6 and 8.
"""

from kernels.cpu.attention.loops import (
    COLUMNS_OF_4,
    FEW_COLUMNS,
    MANY_COLUMNS,
    MIXES_8,
    SCORES_OF_8,
    SIDE_3,
    SIDE_4,
    SIDE_6,
    SIDE_8,
    VECTORS_3,
    VECTORS_4,
    VECTORS_6,
    VECTORS_8,
    Loops,
)
from kernels.cpu.attention.sizes import AHEAD, SCORES, row_values
from kernels.cpu.attention.softmax import soften
from kernels.cpu.attention.vector_loops import copy_first_halves, mix
from kernels.cpu.compiler.language import Static
from kernels.cpu.isa.vectors import read_i64, write_i64


def score_tiles(
    loops: Static[Loops], queries: int, keys: int, tiles: int, pairs: int, words: int, scores: int
) -> None:
    """Of so many pairs. queries: side by side, of so many words. keys: address of the list of their tiles.
    Behind these scores, a tile more may be written; and behind these pairs, those of others."""
    ahead = 8 * AHEAD
    if pairs > 6:
        if SCORES_OF_8:
            loops.score(loops.words, 8, SIDE_8, queries, keys, tiles, ahead, scores, words)
        else:
            loops.score(loops.words, 4, SIDE_4, queries, keys, tiles, ahead, scores, words)
            q, to = queries + 4 * loops.query, scores + 4 * SCORES
            loops.score(loops.words, 4, SIDE_4, q, keys, tiles, ahead, to, words)
    elif pairs > 4:
        loops.score(loops.words, 6, SIDE_6, queries, keys, tiles, ahead, scores, words)
    elif pairs > 3:
        loops.score(loops.words, 4, SIDE_4, queries, keys, tiles, ahead, scores, words)
    else:
        loops.score(loops.words, 3, SIDE_3, queries, keys, tiles, ahead, scores, words)


def weigh_tiles(
    loops: Static[Loops], scores: int, tiles: int, pairs: int, scale: float, totals: int, soon: int
) -> None:
    """Scores, of each pair [16 * tiles] float32, become weights, relative to the pair's largest score. Their
    sums go to `totals`, [16] float32, the largest scores times the scale behind them; those of pairs behind
    these too. scale: above 0. soon: address of a list of tiles, one for each pair; two lines of each are
    asked for with each tile. 0: there is none."""
    if soon == 0 and pairs > 4:
        soften(loops.element, 8, False, scores, tiles, scale, totals, 0)
    elif soon == 0:
        soften(loops.element, 4, False, scores, tiles, scale, totals, 0)
    elif pairs > 6:
        soften(loops.element, 8, True, scores, tiles, scale, totals, soon)
    elif pairs > 4:
        soften(loops.element, 6, True, scores, tiles, scale, totals, soon)
    elif pairs > 3:
        soften(loops.element, 4, True, scores, tiles, scale, totals, soon)
    else:
        soften(loops.element, 3, True, scores, tiles, scale, totals, soon)


def mix_tiles(
    loops: Static[Loops],
    values: int,
    weights: int,
    positions: int,
    pairs: int,
    head_dim: int,
    value_dim: int,
    sums: int,
    pair: int,
) -> None:
    """Adds so many positions to the sums of so many pairs, and anything to those of others. values:
    address of the list of their tiles, of which the first value_dim of head_dim values are mixed. pair: of
    memory for a pair of values, and 16 bytes."""
    stride, width = 4 * head_dim, 4 * row_values(value_dim)
    if loops.words.in_word == 1:
        _mix(loops, values, weights, positions, pairs, stride, width, sums, 8 * AHEAD)
    else:
        if positions > 1:
            _mix(loops, values, weights, positions // 2, pairs, stride, width, sums, 8 * AHEAD)
        if positions % 2:
            # The pair's other half is stale: its weight is 0, but 0 * NaN would be NaN.
            tile, inside = positions // 16, positions % 16 // 2
            source = read_i64(values + 8 * tile) + inside * 2 * loops.stored * head_dim
            copy_first_halves(loops.words, source, pair, (value_dim + 15) // 16)
            write_i64(pair + width, pair)
            _mix(loops, pair + width, weights + 4 * (positions // 2), 1, pairs, stride, width, sums, 0)


def _mix(
    loops: Static[Loops],
    values: int,
    weights: int,
    steps: int,
    pairs: int,
    stride: int,
    width: int,
    sums: int,
    ahead: int,
) -> None:
    """Of so many steps. stride: bytes of a step's values. width: bytes of a pair's sums. ahead: as in the
    loops."""
    column = 0
    while pairs <= 4 and column + FEW_COLUMNS <= width:
        if pairs > 3:
            for at in range(column, column + FEW_COLUMNS, COLUMNS_OF_4):
                mix(loops.words, 4, VECTORS_4, weights, values, ahead, at, stride, sums, width, steps)
        else:
            mix(loops.words, 3, VECTORS_3, weights, values, ahead, column, stride, sums, width, steps)
        column += FEW_COLUMNS
    while column < width:
        if pairs > 6:
            _mix_8(loops, weights, values, ahead, column, stride, sums, width, steps)
        else:
            mix(loops.words, 6, VECTORS_6, weights, values, ahead, column, stride, sums, width, steps)
        column += MANY_COLUMNS


def _mix_8(
    loops: Static[Loops],
    weights: int,
    values: int,
    ahead: int,
    column: int,
    stride: int,
    sums: int,
    width: int,
    steps: int,
) -> None:
    """Eight pairs, in two halves where registers are too few."""
    if MIXES_8:
        mix(loops.words, 8, VECTORS_8, weights, values, ahead, column, stride, sums, width, steps)
    else:
        mix(loops.words, 4, VECTORS_4, weights, values, ahead, column, stride, sums, width, steps)
        p, to = weights + 4 * SCORES, sums + 4 * width
        mix(loops.words, 4, VECTORS_4, p, values, ahead, column, stride, to, width, steps)
