"""Attention over KV blocks where they lie, in bfloat16, for prefill and decode alike.

An item of work is up to 8 (query, head) pairs of one row of the step that share a KV head: the group of
one decoding token, or some tokens of a prompt; or the groups of two rows that decode and begin with the same
blocks (kernels.cpu.attention.work_items_kernel), whose common tiles are computed with for both at once. It
goes over the positions in parts of PART, and in each part three times, 16 positions at a time:

    1. scores    q . k for 16 positions: one register per pair, as in kernels.cpu.matmul.gemm
    2. softmax   exp(scale * score - largest) of the visible positions, 0 of others, as bfloat16; its sum
                 (kernels.cpu.attention.softmax)
    3. mix       sum of p * v over pairs of positions

Parts are merged in ascending order (kernels.cpu.attention.split_kv), then divided by the sum. A row that has
much of all work is split: each of its parts is an item, for any thread to take, and is merged later.

All sums run over positions in ascending order, in tiles that begin at multiples of 16, in parts that begin
at multiples of PART, and positions that a query does not see add zeros. So a result depends on neither the
other queries of an item, nor on how a prompt was cut, nor on who computed a part, nor on which blocks hold
it: bit for bit.
"""

from kernels.cpu.attention.softmax import hide_unseen, weigh_tiles
from kernels.cpu.attention.split_kv import (
    first_part,
    last_part,
    merge_part,
    partial_bytes,
    place_of_part,
    write_result,
)
from kernels.cpu.attention.tile_addresses import LIST, PLACE, append, locate
from kernels.cpu.attention.tiles import AHEAD, mix_tiles, score_tiles
from kernels.cpu.attention.vector_loops import (
    QUERIES,
    QUERY,
    SCORES,
    ask,
    clear,
    copy,
)
from kernels.cpu.attention.work_items_kernel import COMPANY, ITEM
from kernels.cpu.compiler.cache import operation
from kernels.cpu.isa.vectors import read_f32, read_i64, write_i64, write_u32
from kernels.cpu.runtime.program import next_unit

_QUERIES = QUERIES * SCORES
_SEEN = _QUERIES + QUERIES * QUERY
_RESULTS = _SEEN + 64
"""Where things are in a thread's scratch memory: an item's queries, the first position that each of them sees
and the last one, two results."""


def scratch_bytes(head_dim: int) -> int:
    """What one thread needs: two places, scores, queries, two results, the last pair. A multiple of 256."""
    size = 2 * PLACE + _RESULTS + 2 * partial_bytes(head_dim) + 4 * head_dim + 64
    return -(-size // 256) * 256


def _copy_queries(plan: int, record: int, item: int, head: int, scratch: int, lane: int) -> None:
    """Of an item, and which positions they see. lane: which pair the first one is."""
    query, stride = read_i64(record + 16), read_i64(record + 56)
    group, head_dim, window = read_i64(record + 80), read_i64(record + 88), read_i64(plan + 8)
    token, first, pairs = read_i64(item + 16), read_i64(item + 24), read_i64(item + 32)
    query += (token + first // group) * stride + 2 * head * group * head_dim
    in_group, own = first % group, read_i64(item) + first // group
    for m in range(lane, lane + pairs):
        copy(query + 2 * in_group * head_dim, scratch + _QUERIES + m * QUERY, head_dim // 32)
        write_u32(scratch + _SEEN + 4 * m, 0 if window == 0 else max(0, own - window + 1))
        write_u32(scratch + _SEEN + 32 + 4 * m, own)
        in_group += 1
        if in_group == group:
            in_group = 0
            own += 1
            query += stride


def _ask_for_item(record: int, place: int) -> None:
    """For its queries, and for where its results go: rows of some tokens, lines apart."""
    item, head = read_i64(place + 16), read_i64(place + 24)
    group, head_dim, first = read_i64(record + 80), read_i64(record + 88), read_i64(item + 24)
    token, column = read_i64(item + 16) + first // group, 2 * head * group * head_dim
    last = read_i64(item + 16) + (first + read_i64(item + 32) - 1) // group
    for number in range(token, last + 1):
        ask(read_i64(record + 16) + number * read_i64(record + 56) + column, group * head_dim // 32)
        ask(read_i64(record + 40) + number * read_i64(record + 64) + column, group * head_dim // 32)


def _compute_part(plan: int, record: int, place: int, scratch: int, to: int) -> None:
    """A part's result. scratch: the item's queries are in it. to: address of the result."""
    head_dim, item = read_i64(record + 88), read_i64(place + 16)
    tiles, shared, own = read_i64(place + 8), read_i64(place + 40), read_i64(place + 48)
    pairs = read_i64(item + 32)
    of_both = 2 * pairs if read_i64(item + COMPANY) else pairs
    most = shared + max(own, tiles - shared - own)
    _score(place, pairs, head_dim, scratch)
    _hide_unseen(plan, record, place, most, of_both, scratch)
    # Queries of several tokens compute for so long that memory need not be asked for in between.
    soon = place + LIST + 8 * (tiles + AHEAD) if pairs <= read_i64(record + 80) else 0
    weigh_tiles(scratch, most, of_both, read_f32(record + 104), to + 32 * head_dim, soon)
    clear(to, head_dim // 2)
    _mix(place, pairs, head_dim, scratch, to)


def _score(place: int, pairs: int, head_dim: int, scratch: int) -> None:
    """Of the tiles of two rows for the pairs of both, of others for those of their row. Each row has as many
    pairs. The second row comes last: what is computed too much is in its way."""
    queries, keys, words = scratch + _QUERIES, place + LIST, head_dim // 2
    shared, own = read_i64(place + 40), read_i64(place + 48)
    others, to = read_i64(place + 8) - shared - own, scratch + 64 * shared
    if shared > 0:
        score_tiles(queries, keys, shared, 2 * pairs, words, scratch)
    if own > 0:
        score_tiles(queries, keys + 8 * shared, own, pairs, words, to)
    if others > 0:
        queries += QUERY * pairs
        score_tiles(queries, keys + 8 * (shared + own), others, pairs, words, to + SCORES * pairs)


def _hide_unseen(plan: int, record: int, place: int, tiles: int, pairs: int, scratch: int) -> None:
    """Of the scores in scratch memory: positions after the first query, and before the last one's window; and
    what is not there, where one of two rows ends before the other."""
    base, item, window = read_i64(place), read_i64(place + 16), read_i64(plan + 8)
    group, company = read_i64(record + 80), read_i64(item + COMPANY)
    own = read_i64(item) + read_i64(item + 24) // group - base
    if company:
        own = min(own, read_i64(company) - base)
    seen_by_all = max(0, (own + 1) // 16)
    if seen_by_all < tiles:
        hide_unseen(scratch, seen_by_all, tiles - seen_by_all, pairs, base, scratch + _SEEN)
    if window > 0:
        least = read_i64(item) + (read_i64(item + 24) + pairs - 1) // group - window + 1 - base
        if least > 0:
            hide_unseen(scratch, 0, min(tiles, (least + 15) // 16), pairs, base, scratch + _SEEN)


def _mix(place: int, pairs: int, head_dim: int, scratch: int, sums: int) -> None:
    """As _score(), with the weights in scratch memory."""
    tiles, shared, own = read_i64(place + 8), read_i64(place + 40), read_i64(place + 48)
    values, weights = place + LIST + 8 * tiles, scratch + 32 * shared
    one_pair = scratch + _RESULTS + 2 * partial_bytes(head_dim)
    before = read_i64(place) + 16 * shared
    if shared > 0:
        mix_tiles(values, scratch, 16 * shared, 2 * pairs, head_dim, sums, one_pair)
    if own > 0:
        positions = read_i64(place + 32) - before
        mix_tiles(values + 8 * shared, weights, positions, pairs, head_dim, sums, one_pair)
    if tiles > shared + own:
        values += 8 * (shared + own)
        weights += SCORES * pairs
        positions = read_i64(place + 56) - before
        mix_tiles(values, weights, positions, pairs, head_dim, sums + 4 * head_dim * pairs, one_pair)


def _attend(plan: int, record: int, part: int, place: int, scratch: int) -> None:
    """A part of a unit, merged with those before it; the last one writes the result."""
    group, head_dim = read_i64(record + 80), read_i64(record + 88)
    item, head = read_i64(place + 16), read_i64(place + 24)
    company, before = read_i64(item + COMPANY), scratch + _RESULTS
    own = before + partial_bytes(head_dim)
    if read_i64(item + 40) >= 0:
        if read_i64(place + 8) > 0:
            _copy_queries(plan, record, item, head, scratch, 0)
            _compute_part(plan, record, place, scratch, place_of_part(plan, record, item, head, part))
        return
    if part == first_part(plan, item, group):
        _copy_queries(plan, record, item, head, scratch, 0)
        if company:
            _copy_queries(plan, record, company, head, scratch, read_i64(item + 32))
        _compute_part(plan, record, place, scratch, before)
    else:
        _compute_part(plan, record, place, scratch, own)
        merge_part(before, own, head_dim)
    if part == last_part(item, group):
        write_result(record, item, head, before, 0)
        if company:
            write_result(record, company, head, before, read_i64(item + 32))


def _begins_with(plan: int, record: int, unit: int) -> int:
    """The first part of a unit, or its only one."""
    item = read_i64(plan) + ITEM * (unit // read_i64(record + 72))
    part = read_i64(item + 40)
    return part if part >= 0 else first_part(plan, item, read_i64(record + 80))


def _ends_with(plan: int, record: int, unit: int) -> int:
    """The last part of a unit, or its only one."""
    item = read_i64(plan) + ITEM * (unit // read_i64(record + 72))
    part = read_i64(item + 40)
    return part if part >= 0 else last_part(item, read_i64(record + 80))


@operation
def attention(record: int, first: int, count: int, thread: int) -> None:
    """record: items * KV heads, addresses of queries, keys, values, results and plan; bytes from token to
    token of queries and results; KV heads, query heads per KV head, head size, block size; scale (float32)
    and, beside it, which set of places for parts it has (uint32).

    Queries, results: [T, H, D], heads side by side. Keys, values: the layer's cache. The plan is that of
    kernels.cpu.attention.block_attention: address of the items, window (0: none), address of scratch memory,
    bytes of it for a thread (scratch_bytes()), address of the places for parts of split items, bytes of a
    set of them.

    Memory is asked for AHEAD tiles before it is needed: blocks lie anywhere, and no CPU foresees them. After
    the last unit, that is the unit which this thread will most likely take next.
    """
    plan, units = read_i64(record + 48), read_i64(record + 8)
    place = read_i64(plan + 16) + thread * read_i64(plan + 24)
    later = place + PLACE
    scratch = later + PLACE
    unit, end = first, first + count
    part = _begins_with(plan, record, unit)
    locate(plan, record, unit, part, place)
    for tile in range(min(AHEAD, 2 * read_i64(place + 8))):
        ask(read_i64(place + LIST + 8 * tile), read_i64(record + 88) // 2)
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
            locate(plan, record, following, next_part, later)
            if following != unit:
                _ask_for_item(record, later)
        append(place, later)
        _attend(plan, record, part, place, scratch)
        unit = unit if following == unit else unit + 1
        part = next_part
        place, later = later, place
