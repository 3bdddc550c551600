"""The products of kernels.cpu.attention.attention for any number of (query, head) pairs: scores, and mixed
values.

A loop computes a fixed number of pairs, of which some may be unused: with three pairs, a loop for four
takes a third longer. The loops that there are: 3 pairs, 4, 6 and 8.
"""

from kernels.cpu.attention.vector_loops import (
    FEW_COLUMNS,
    MANY_COLUMNS,
    copy_first_halves,
    mix_3,
    mix_4,
    mix_6,
    mix_8,
    scores_3,
    scores_4,
    scores_6,
    scores_8,
)
from kernels.cpu.isa.vectors import read_i64, write_i64

AHEAD = 8
"""Tiles asked for before they are needed: 16 KiB with a head size of 64. Twice as many gain nothing."""


def score_tiles(queries: int, keys: int, tiles: int, pairs: int, words: int, scores: int) -> None:
    """Of so many pairs. queries: side by side, of so many words. keys: address of the list of their tiles.
    Behind these scores, a tile more may be written; and behind these pairs, those of others."""
    ahead = 8 * AHEAD
    if pairs > 6:
        scores_8(queries, keys, tiles, ahead, scores, words)
    elif pairs > 4:
        scores_6(queries, keys, tiles, ahead, scores, words)
    elif pairs > 3:
        scores_4(queries, keys, tiles, ahead, scores, words)
    else:
        scores_3(queries, keys, tiles, ahead, scores, words)


def mix_tiles(
    values: int, weights: int, positions: int, pairs: int, head_dim: int, sums: int, pair: int
) -> None:
    """Adds so many positions to the sums of so many pairs, and anything to those of others. values:
    address of the list of their tiles. pair: of memory for a pair of values, and 16 bytes."""
    if positions > 1:
        _mix(values, weights, positions // 2, pairs, 4 * head_dim, sums, 8 * AHEAD)
    if positions % 2:
        # The pair's other half is stale: its weight is 0, but 0 * NaN would be NaN.
        tile, inside, stride = positions // 16, positions % 16 // 2, 4 * head_dim
        copy_first_halves(read_i64(values + 8 * tile) + inside * stride, pair, head_dim // 16)
        write_i64(pair + stride, pair)
        _mix(pair + stride, weights + 4 * (positions // 2), 1, pairs, stride, sums, 0)


def _mix(values: int, weights: int, steps: int, pairs: int, stride: int, sums: int, ahead: int) -> None:
    """Of so many pairs of positions. stride: bytes of a pair of values. ahead: as in mix_3()."""
    column = 0
    while pairs <= 4 and column + FEW_COLUMNS <= stride:
        if pairs > 3:
            mix_4(weights, values, ahead, column, stride, sums, steps)
        else:
            mix_3(weights, values, ahead, column, stride, sums, steps)
        column += FEW_COLUMNS
    while column < stride:
        if pairs > 6:
            mix_8(weights, values, ahead, column, stride, sums, steps)
        else:
            mix_6(weights, values, ahead, column, stride, sums, steps)
        column += MANY_COLUMNS
