"""The tiles of a part of a unit of attention: their addresses in the order in which they are needed, and the
products of any number of (query, head) pairs with them: scores, and mixed values; and the weights between.

A PartPlace is followed by the list: addresses of the tiles of keys, then of values; then of what comes after
this part. Keys and values alike come in the order: shared tiles, the row's own ones, those of the paired row.

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
from kernels.cpu.attention.records import (
    AttentionItem,
    AttentionRecord,
    PartPlace,
    PlanRecord,
    first_seen,
    last_seen,
)
from kernels.cpu.attention.sizes import AHEAD, LIST, PART, QUERIES, SCORES, row_values
from kernels.cpu.attention.softmax import soften
from kernels.cpu.attention.vector_loops import copy, copy_first_halves, mix
from kernels.cpu.compiler.language import Static
from kernels.cpu.isa.vectors import read_i64, write_i64


def locate(
    size: Static[int], plan: PlanRecord, record: AttentionRecord, unit: int, part: int, place: PartPlace
) -> None:
    """Writes down where a part of a unit is. Of a split item some parts may have no tiles: outside of the
    window, or beyond its last query. size: bytes of a value."""
    group = record.group
    item, head = AttentionItem.at(plan.items, unit // record.kv_heads), unit % record.kv_heads
    start, first = item.start, item.first
    begin = max(first_seen(plan, start + first // group) // 16 * 16, part * PART)
    last = last_seen(plan, item, start + (first + item.pairs - 1) // group)
    end = min(last + 1, part * PART + PART)
    tiles = max(0, (end - begin + 15) // 16)
    shared = others = 0
    if item.paired:
        paired = AttentionItem.at(item.paired)
        paired_end = min(paired.start + 1, part * PART + PART)
        shared = max(0, min(paired.shared - begin, PART)) // 16
        others = (paired_end - begin + 15) // 16 - shared
        place.paired_end = paired_end
    place.begin, place.tiles = begin, tiles + others
    place.item, place.head, place.end = item.address, head, end
    place.shared, place.own = shared, tiles - shared
    at = place.address + LIST
    _list_tiles(size, record, item, head, begin, tiles, at, tiles + others)
    if others > 0:
        paired = AttentionItem.at(item.paired)
        _list_tiles(size, record, paired, head, begin + 16 * shared, others, at + 8 * tiles, tiles + others)


def _list_tiles(
    size: Static[int],
    record: AttentionRecord,
    item: AttentionItem,
    head: int,
    begin: int,
    tiles: int,
    at: int,
    to_values: int,
) -> None:
    """Of an item's row, from a position on. at: address in the list of keys. to_values: entries from there to
    those of values."""
    keys, values, kv_heads = record.key_cache, record.value_cache, record.kv_heads
    tile_bytes, block_size = 16 * size * record.head_dim, record.block_size
    table, block, in_block = item.table, begin // block_size, begin % block_size // 16
    for _tile in range(tiles):
        slot = (read_i64(table + 8 * block) * kv_heads + head) * (block_size // 16) + in_block
        write_i64(at, keys + slot * tile_bytes)
        write_i64(at + 8 * to_values, values + slot * tile_bytes)
        at += 8
        in_block += 1
        if 16 * in_block == block_size:
            block += 1
            in_block = 0


def append(place: PartPlace, later: PartPlace) -> None:
    """Continues a place's list with what comes after it, if anything does: as much as is asked for ahead."""
    at, source = place.address + LIST + 16 * place.tiles, later.address + LIST
    following = later.tiles
    if 2 * following >= AHEAD + QUERIES:
        copy(source, at, (AHEAD + QUERIES) // 8)
        return
    left = 2 * following
    if following == 0:
        source, left = at - 8, 1
    for entry in range(AHEAD + QUERIES):
        write_i64(at + 8 * entry, read_i64(source))
        if left > 1:
            source += 8
            left -= 1


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
