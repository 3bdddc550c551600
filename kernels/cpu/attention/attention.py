"""Attention over KV blocks where they lie, for prefill and decode alike.

An item of work is up to 8 (query, head) pairs of one row of the step that share a KV head: the group of
one decoding token, or some tokens of a prompt; or the groups of two rows that decode and begin with the same
blocks (kernels.cpu.step.prepare_inputs), whose common tiles are computed with for both at
once. It goes over the positions in parts of PART, and in each part three times, 16 positions at a time:

    1. scores    q . k for 16 positions: one register per pair, as in kernels.cpu.matmul.gemm
    2. softmax   exp(scale * score - largest) of the visible positions, 0 of others, and their sum
                 (kernels.cpu.attention.softmax)
    3. mix       sum of p * v over positions, pairs of them in bfloat16

Parts are merged in ascending order (kernels.cpu.attention.split_kv), then divided by the sum. A row that has
much of all work is split: each of its parts is an item, for any thread to take, and is merged later.

All sums run over positions in ascending order, in tiles that begin at multiples of 16, in parts that begin
at multiples of PART, and positions that a query does not see add zeros. So a result depends on neither the
other queries of an item, nor on how a prompt was cut, nor on which thread computed a part, nor on which
blocks hold it: bit for bit.
"""

from kernels.cpu.attention.loops import Loops
from kernels.cpu.attention.records import (
    AttentionItem,
    AttentionRecord,
    PartPlace,
    PlanRecord,
    ScoringRecord,
    first_seen,
    last_seen,
)
from kernels.cpu.attention.sizes import (
    AHEAD,
    LIST,
    PLACE,
    QUERIES,
    QUERIES_AT,
    SCORES,
    partial_bytes,
    row_values,
)
from kernels.cpu.attention.softmax import cap_scores, hide_unseen
from kernels.cpu.attention.split_kv import first_part, last_part, merge_part, place_of_part, write_result
from kernels.cpu.attention.tiles import append, locate, mix_tiles, score_tiles, weigh_tiles
from kernels.cpu.attention.vector_loops import ask, clear, copy
from kernels.cpu.compiler.language import Static
from kernels.cpu.isa.simd import store_f32
from kernels.cpu.isa.vectors import read_i64, read_u32, write_u32
from kernels.cpu.runtime.program import next_unit


def _seen(loops: Static[Loops], scratch: int) -> int:
    return scratch + QUERIES_AT + QUERIES * loops.query


def _results(loops: Static[Loops], scratch: int) -> int:
    return _seen(loops, scratch) + 64


def _copy_queries(
    loops: Static[Loops],
    plan: PlanRecord,
    record: AttentionRecord,
    item: AttentionItem,
    head: int,
    scratch: int,
    lane: int,
) -> None:
    """Of an item, and which positions they see. lane: which pair the first one is."""
    stride, group = record.query_stride, record.group
    first, pairs, query_bytes = item.first, item.pairs, loops.element.size * record.head_dim
    query = record.query + (item.token + first // group) * stride + head * group * query_bytes
    in_group, own = first % group, item.start + first // group
    for m in range(lane, lane + pairs):
        _copy_query(
            loops, query + in_group * query_bytes, scratch + QUERIES_AT + m * loops.query, query_bytes
        )
        write_u32(_seen(loops, scratch) + 4 * m, first_seen(plan, own))
        write_u32(_seen(loops, scratch) + 32 + 4 * m, last_seen(plan, item, own))
        in_group += 1
        if in_group == group:
            in_group = 0
            own += 1
            query += stride


def _copy_query(loops: Static[Loops], query: int, to: int, query_bytes: int) -> None:
    """So many bytes, a multiple of 4; of 16 values, where they are widened."""
    if loops.widens:
        for value in range(0, query_bytes // loops.element.size, 16):
            store_f32(to + 4 * value, loops.element.load(query + loops.element.size * value))
    else:
        lines = query_bytes // 64
        if lines:
            copy(query, to, lines)
        for at in range(64 * lines, query_bytes, 4):
            write_u32(to + at, read_u32(query + at))


def _ask_for_item(size: Static[int], record: AttentionRecord, place: PartPlace) -> None:
    """For its queries, and for where its results go: rows of some tokens, lines apart."""
    item, group, head_dim = AttentionItem.at(place.item), record.group, record.head_dim
    token, row_bytes = item.token + item.first // group, size * group * head_dim
    column = place.head * row_bytes
    last = item.token + (item.first + item.pairs - 1) // group
    for number in range(token, last + 1):
        ask(record.query + number * record.query_stride + column, row_bytes // 64)
        ask(record.out + number * record.out_stride + column, row_bytes // 64)


def _compute_part(
    loops: Static[Loops],
    plan: PlanRecord,
    record: AttentionRecord,
    place: PartPlace,
    scratch: int,
    to: int,
) -> None:
    """A part's result. scratch: the item's queries are in it. to: address of the result."""
    head_dim, item = record.head_dim, AttentionItem.at(place.item)
    tiles, shared, own, pairs = place.tiles, place.shared, place.own, item.pairs
    of_both = 2 * pairs if item.paired else pairs
    most = shared + max(own, tiles - shared - own)
    _score(loops, place, pairs, head_dim, scratch)
    if record.scoring and ScoringRecord.at(record.scoring).soft_cap > 0:
        cap_scores(scratch, most, of_both, record.scale, ScoringRecord.at(record.scoring).soft_cap)
    _hide_unseen(plan, record, place, most, of_both, scratch, _seen(loops, scratch))
    # Queries of several tokens compute for so long that memory need not be asked for in between.
    soon = place.address + LIST + 8 * (tiles + AHEAD) if pairs <= record.group else 0
    totals = 32 * row_values(record.value_dim)
    weigh_tiles(loops, scratch, most, of_both, record.scale, to + totals, soon)
    clear(to, totals // 64)
    _mix(loops, record, place, pairs, scratch, to)


def _score(loops: Static[Loops], place: PartPlace, pairs: int, head_dim: int, scratch: int) -> None:
    """Of the tiles of two rows for the pairs of both, of others for those of their row. Each row has as many
    pairs. The second row comes last: what is computed too much is in its way."""
    queries, keys, words = scratch + QUERIES_AT, place.address + LIST, head_dim // loops.words.in_word
    shared, own = place.shared, place.own
    others, to = place.tiles - shared - own, scratch + 64 * shared
    if shared > 0:
        score_tiles(loops, queries, keys, shared, 2 * pairs, words, scratch)
    if own > 0:
        score_tiles(loops, queries, keys + 8 * shared, own, pairs, words, to)
    if others > 0:
        queries += loops.query * pairs
        score_tiles(loops, queries, keys + 8 * (shared + own), others, pairs, words, to + SCORES * pairs)


def _hide_unseen(
    plan: PlanRecord,
    record: AttentionRecord,
    place: PartPlace,
    tiles: int,
    pairs: int,
    scratch: int,
    seen: int,
) -> None:
    """Of the scores in scratch memory: positions after those that the first query sees, and those that the
    last one no longer sees; and what is not there, where one of two rows ends before the other."""
    base, item, group = place.begin, AttentionItem.at(place.item), record.group
    own = last_seen(plan, item, item.start + item.first // group) - base
    if item.paired:
        own = min(own, AttentionItem.at(item.paired).start - base)
    seen_by_all = max(0, (own + 1) // 16)
    if seen_by_all < tiles:
        hide_unseen(scratch, seen_by_all, tiles - seen_by_all, pairs, base, seen)
    least = first_seen(plan, item.start + (item.first + pairs - 1) // group) - base
    if least > 0:
        hide_unseen(scratch, 0, min(tiles, (least + 15) // 16), pairs, base, seen)


def _mix(
    loops: Static[Loops], record: AttentionRecord, place: PartPlace, pairs: int, scratch: int, sums: int
) -> None:
    """As _score(), with the weights in scratch memory."""
    tiles, shared, own = place.tiles, place.shared, place.own
    head_dim, value_dim = record.head_dim, record.value_dim
    values, weights = place.address + LIST + 8 * tiles, scratch + 16 * loops.element.size * shared
    one_pair = _results(loops, scratch) + 2 * partial_bytes(record.value_dim)
    before = place.begin + 16 * shared
    if shared > 0:
        mix_tiles(loops, values, scratch, 16 * shared, 2 * pairs, head_dim, value_dim, sums, one_pair)
    values += 8 * shared
    if own > 0:
        positions = place.end - before
        mix_tiles(loops, values, weights, positions, pairs, head_dim, value_dim, sums, one_pair)
    if tiles > shared + own:
        values += 8 * own
        weights += SCORES * pairs
        positions = place.paired_end - before
        sums += 4 * row_values(record.value_dim) * pairs
        mix_tiles(loops, values, weights, positions, pairs, head_dim, value_dim, sums, one_pair)


def _attend(
    loops: Static[Loops],
    plan: PlanRecord,
    record: AttentionRecord,
    part: int,
    place: PartPlace,
    scratch: int,
) -> None:
    """A part of a unit, merged with those before it; the last one writes the result."""
    group, value_dim = record.group, record.value_dim
    item, head, before = AttentionItem.at(place.item), place.head, _results(loops, scratch)
    own = before + partial_bytes(value_dim)
    if item.part >= 0:
        if place.tiles > 0:
            _copy_queries(loops, plan, record, item, head, scratch, 0)
            _compute_part(loops, plan, record, place, scratch, own)
            # A thread that is late writes here again, while others may read: nothing but the result.
            copy(own, place_of_part(plan, record, item, head, part), partial_bytes(value_dim) // 64)
        return
    if part == first_part(plan, item, group):
        _copy_queries(loops, plan, record, item, head, scratch, 0)
        if item.paired:
            _copy_queries(loops, plan, record, AttentionItem.at(item.paired), head, scratch, item.pairs)
        _compute_part(loops, plan, record, place, scratch, before)
    else:
        _compute_part(loops, plan, record, place, scratch, own)
        merge_part(before, own, value_dim)
    if part == last_part(plan, item, group):
        write_result(loops.element, record, item, head, before, 0)
        if item.paired:
            write_result(loops.element, record, AttentionItem.at(item.paired), head, before, item.pairs)


def _begins_with(plan: PlanRecord, record: AttentionRecord, unit: int) -> int:
    """The first part of a unit, or its only one."""
    item = AttentionItem.at(plan.items, unit // record.kv_heads)
    return item.part if item.part >= 0 else first_part(plan, item, record.group)


def _ends_with(plan: PlanRecord, record: AttentionRecord, unit: int) -> int:
    """The last part of a unit, or its only one."""
    item = AttentionItem.at(plan.items, unit // record.kv_heads)
    return item.part if item.part >= 0 else last_part(plan, item, record.group)


def attend_units(loops: Static[Loops], record: AttentionRecord, first: int, count: int, thread: int) -> None:
    """Units first .. first + count - 1: of each item its KV heads.

    Memory is asked for AHEAD tiles before it is needed: blocks lie anywhere, and no CPU foresees them. After
    the last unit, that is the unit which this thread will most likely take next.
    """
    plan, units = PlanRecord.at(record.plan), record.rows
    place = PartPlace.at(plan.scratch + thread * plan.scratch_bytes)
    later = PartPlace.at(place.address + PLACE)
    scratch = later.address + PLACE
    unit, end = first, first + count
    part = _begins_with(plan, record, unit)
    locate(loops.stored, plan, record, unit, part, place)
    for tile in range(min(AHEAD, 2 * place.tiles)):
        ask(read_i64(place.address + LIST + 8 * tile), loops.stored * record.head_dim // 4)
    while unit < end:
        following, next_part = unit, part + 1
        if part == _ends_with(plan, record, unit):
            following += 1
            if following == end:
                following = next_unit(record.address, thread)
            if following < units:
                next_part = _begins_with(plan, record, following)
        later.tiles = 0
        if following < units:
            locate(loops.stored, plan, record, following, next_part, later)
            if following != unit:
                _ask_for_item(loops.element.size, record, later)
        append(place, later)
        _attend(loops, plan, record, part, place, scratch)
        unit = unit if following == unit else unit + 1
        part = next_part
        place, later = later, place
