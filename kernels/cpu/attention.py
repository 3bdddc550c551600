"""Attention over KV blocks where they lie, in bfloat16, for prefill and decode alike.

An item of work is up to 8 (query, head) pairs of one row of the step that share a KV head: the group of
one decoding token, or some tokens of a prompt. It goes over the row's positions in parts of PART, and in
each part three times, 16 positions at a time:

    1. scores    q . k for 16 positions: one register per pair, as in kernels.cpu.linear
    2. softmax   exp(scale * score - largest) of the visible positions, 0 of others, as bfloat16; its sum
                 (kernels.cpu.attention_softmax)
    3. mix       sum of p * v over pairs of positions

Parts are merged in ascending order (kernels.cpu.attention_parts), then divided by the sum. A row that has
much of all work is split: each of its parts is an item, for any thread to take, and is merged later.

All sums run over positions in ascending order, in tiles that begin at multiples of 16, in parts that begin
at multiples of PART, and positions that a query does not see add zeros. So a result depends on neither the
other queries of an item, nor on how a prompt was cut, nor on who computed a part, nor on which blocks hold
it: bit for bit.
"""

from kernels.cpu.attention_parts import (
    first_part,
    last_part,
    merge_part,
    partial_bytes,
    place_of_part,
    write_result,
)
from kernels.cpu.attention_softmax import hide_unseen, weigh_tiles
from kernels.cpu.attention_tiles import AHEAD, mix_tiles, score_tiles
from kernels.cpu.attention_vectors import (
    PART,
    QUERIES,
    QUERY,
    SCORES,
    ask,
    clear,
    copy,
)
from kernels.cpu.compiler import operation
from kernels.cpu.program import next_unit
from kernels.cpu.vectors import read_f32, read_i64, write_i64, write_u32

_LIST = 40
_PLACE = 1024
"""Bytes of a place, see _locate(). The list has PART // 8 + AHEAD + QUERIES entries at most."""
_QUERIES = QUERIES * SCORES
_SEEN = _QUERIES + QUERIES * QUERY
_RESULTS = _SEEN + 64
"""Where things are in a thread's scratch memory: an item's queries, the first position that each of them sees
and the last one, two results."""


def scratch_bytes(head_dim: int) -> int:
    """What one thread needs: two places, scores, queries, two results, the last pair. A multiple of 256."""
    size = 2 * _PLACE + _RESULTS + 2 * partial_bytes(head_dim) + 4 * head_dim + 64
    return -(-size // 256) * 256


def _locate(plan: int, record: int, unit: int, part: int, place: int) -> None:
    """Writes down where a part of a unit is:

    place    first position (a multiple of 16), tiles, address of the item, KV head, last position and one
             then the list: addresses of the tiles of keys, and of values

    Of a split item some parts may have no tiles: outside of the window, or beyond its last query.
    """
    keys, values = read_i64(record + 24), read_i64(record + 32)
    kv_heads, group = read_i64(record + 72), read_i64(record + 80)
    tile_bytes, block_size = 32 * read_i64(record + 88), read_i64(record + 96)
    item, head = read_i64(plan) + 56 * (unit // kv_heads), unit % kv_heads
    start, table = read_i64(item), read_i64(item + 8)
    first, pairs, window = read_i64(item + 24), read_i64(item + 32), read_i64(plan + 8)
    lowest = 0 if window == 0 else max(0, start + first // group - window + 1)
    begin = max(lowest // 16 * 16, part * PART)
    end = min(start + (first + pairs - 1) // group + 1, part * PART + PART)
    tiles = max(0, (end - begin + 15) // 16)
    write_i64(place, begin)
    write_i64(place + 8, tiles)
    write_i64(place + 16, item)
    write_i64(place + 24, head)
    write_i64(place + 32, end)
    at, block, in_block = place + _LIST, begin // block_size, begin % block_size // 16
    for _tile in range(tiles):
        slot = (read_i64(table + 8 * block) * kv_heads + head) * (block_size // 16) + in_block
        write_i64(at, keys + slot * tile_bytes)
        write_i64(at + 8 * tiles, values + slot * tile_bytes)
        at += 8
        in_block += 1
        if 16 * in_block == block_size:
            block += 1
            in_block = 0


def _append(place: int, later: int) -> None:
    """Continues a place's list with what comes after it, if anything does: as much as is asked for ahead."""
    tiles, following = read_i64(place + 8), read_i64(later + 8)
    at, source = place + _LIST + 16 * tiles, later + _LIST
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


def _copy_queries(plan: int, record: int, item: int, head: int, scratch: int) -> None:
    """Of an item, and which positions they see."""
    query, stride = read_i64(record + 16), read_i64(record + 56)
    group, head_dim, window = read_i64(record + 80), read_i64(record + 88), read_i64(plan + 8)
    token, first, pairs = read_i64(item + 16), read_i64(item + 24), read_i64(item + 32)
    query += (token + first // group) * stride + 2 * head * group * head_dim
    in_group, own = first % group, read_i64(item) + first // group
    for m in range(pairs):
        copy(query + 2 * in_group * head_dim, scratch + _QUERIES + m * QUERY, head_dim // 32)
        write_u32(scratch + _SEEN + 4 * m, 0 if window == 0 else max(0, own - window + 1))
        write_u32(scratch + _SEEN + 32 + 4 * m, own)
        in_group += 1
        if in_group == group:
            in_group = 0
            own += 1
            query += stride


def _compute_part(plan: int, record: int, place: int, scratch: int, to: int) -> None:
    """A part's result. scratch: the item's queries are in it. to: address of the result."""
    head_dim = read_i64(record + 88)
    base, tiles, pairs = read_i64(place), read_i64(place + 8), read_i64(read_i64(place + 16) + 32)
    keys, queries = place + _LIST, scratch + _QUERIES
    score_tiles(queries, keys, tiles, pairs, head_dim // 2, scratch)
    _hide_unseen(plan, record, place, scratch)
    soon = keys + 8 * (tiles + AHEAD)
    weigh_tiles(scratch, tiles, pairs, read_f32(record + 104), to + 32 * head_dim, soon)
    clear(to, head_dim // 2)
    one_pair = scratch + _RESULTS + 2 * partial_bytes(head_dim)
    mix_tiles(keys + 8 * tiles, scratch, read_i64(place + 32) - base, pairs, head_dim, to, one_pair)


def _hide_unseen(plan: int, record: int, place: int, scratch: int) -> None:
    """Of the scores in scratch memory: positions after the first query, and before the last one's window."""
    base, tiles, item = read_i64(place), read_i64(place + 8), read_i64(place + 16)
    pairs, group, window = read_i64(item + 32), read_i64(record + 80), read_i64(plan + 8)
    own = read_i64(item) + read_i64(item + 24) // group - base
    seen_by_all = max(0, (own + 1) // 16)
    if seen_by_all < tiles:
        hide_unseen(scratch, seen_by_all, tiles - seen_by_all, pairs, base, scratch + _SEEN)
    if window > 0:
        least = read_i64(item) + (read_i64(item + 24) + pairs - 1) // group - window + 1 - base
        if least > 0:
            hide_unseen(scratch, 0, min(tiles, (least + 15) // 16), pairs, base, scratch + _SEEN)


def _attend(plan: int, record: int, part: int, place: int, scratch: int) -> None:
    """A part of a unit, merged with those before it; the last one writes the result."""
    group, head_dim = read_i64(record + 80), read_i64(record + 88)
    item, head = read_i64(place + 16), read_i64(place + 24)
    before = scratch + _RESULTS
    own = before + partial_bytes(head_dim)
    if read_i64(item + 40) >= 0:
        if read_i64(place + 8) > 0:
            _copy_queries(plan, record, item, head, scratch)
            _compute_part(plan, record, place, scratch, place_of_part(plan, record, item, head, part))
        return
    if part == first_part(plan, item, group):
        _copy_queries(plan, record, item, head, scratch)
        _compute_part(plan, record, place, scratch, before)
    else:
        _compute_part(plan, record, place, scratch, own)
        merge_part(before, own, head_dim)
    if part == last_part(item, group):
        write_result(record, item, head, before)


def _begins_with(plan: int, record: int, unit: int) -> int:
    """The first part of a unit, or its only one."""
    item = read_i64(plan) + 56 * (unit // read_i64(record + 72))
    part = read_i64(item + 40)
    return part if part >= 0 else first_part(plan, item, read_i64(record + 80))


def _ends_with(plan: int, record: int, unit: int) -> int:
    """The last part of a unit, or its only one."""
    item = read_i64(plan) + 56 * (unit // read_i64(record + 72))
    part = read_i64(item + 40)
    return part if part >= 0 else last_part(item, read_i64(record + 80))


@operation
def attention(record: int, first: int, count: int, thread: int) -> None:
    """record: items * KV heads, addresses of queries, keys, values, results and plan; bytes from token to
    token of queries and results; KV heads, query heads per KV head, head size, block size; scale (float32)
    and, beside it, which set of places for parts it has (uint32).

    Queries, results: [T, H, D], heads side by side. Keys, values: the layer's cache. The plan is that of
    kernels.block_attention: address of the items, window (0: none), address of scratch memory, bytes of it
    for a thread (scratch_bytes()), address of the places for parts of split items, bytes of a set of them.

    Memory is asked for AHEAD tiles before it is needed: blocks lie anywhere, and no CPU foresees them. After
    the last unit, that is the unit which this thread will most likely take next.
    """
    plan, units = read_i64(record + 48), read_i64(record + 8)
    place = read_i64(plan + 16) + thread * read_i64(plan + 24)
    later = place + _PLACE
    scratch = later + _PLACE
    unit, end = first, first + count
    part = _begins_with(plan, record, unit)
    _locate(plan, record, unit, part, place)
    for tile in range(min(AHEAD, 2 * read_i64(place + 8))):
        ask(read_i64(place + _LIST + 8 * tile), read_i64(record + 88) // 2)
    while unit < end:
        following, next_part = unit, part + 1
        if part == _ends_with(plan, record, unit):
            following += 1
            if following == end:
                following = next_unit(record, thread)
            if following < units:
                next_part = _begins_with(plan, record, following)
        write_i64(later + 8, 0)
        if following < units:
            _locate(plan, record, following, next_part, later)
        _append(place, later)
        _attend(plan, record, part, place, scratch)
        unit = unit if following == unit else unit + 1
        part = next_part
        place, later = later, place
