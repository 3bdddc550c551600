"""Attention over KV blocks where they lie, in bfloat16, for prefill and decode alike.

An item of work is up to 8 (query, head) pairs of one row of the step that share a KV head: the group of
one decoding token, or some tokens of a prompt. Three passes over the row's positions, 16 at a time:

    1. scores    q . k for 16 positions: one register per pair, as in kernels.cpu.linear
    2. softmax   exp(scale * score - largest) of the visible positions, 0 of others, as bfloat16; its sum
    3. mix       sum of p * v over pairs of positions, then divided by the sum

All sums run over positions in ascending order, in tiles that begin at multiples of 16, and positions
that a query does not see add zeros. So a result depends on neither the other queries of an item, nor on
how a prompt was cut, nor on which blocks hold it: bit for bit.
"""

from typing import Any

from llvmlite import ir

from kernels.cpu import types
from kernels.cpu.compiler import operation
from kernels.cpu.language import intrinsic
from kernels.cpu.vectors import (
    F32,
    F32S,
    I16S,
    I32,
    I32S,
    I64,
    LANES,
    broadcast,
    call,
    dot_pairs,
    exp,
    load,
    pairs_at,
    prefetch,
    read_f32,
    read_i64,
    read_u32,
    repeat,
    repeated_pair,
    rounded,
    store,
    word,
    write_i64,
    write_u32,
    zeros,
)

COLUMNS = 2 * LANES
"""Of values that are mixed at a time, in 8 x 2 registers."""


def scratch_bytes(positions: int, head_dim: int) -> int:
    """What one thread needs for rows of up to that many positions: a quarter each for the places of two
    units, the rest for scores, queries and sums. A multiple of 256."""
    tiles = positions // LANES + 2
    scores = 8 * (64 * tiles + 6 * head_dim + 4) + 4 * head_dim + 16
    return -(-max(4 * (32 + 24 * tiles), 2 * scores) // 256) * 256


def _make_scores(rows: int) -> Any:
    """scores(q, q_stride, tiles, soon, count, out, out_stride, words): 16 positions of each of `count` tiles,
    for each of the rows. tiles: address of their addresses. soon: the same of as many tiles that are asked
    for from memory meanwhile."""

    @intrinsic(types.void(*[types.int64] * 8))
    def scores(
        builder: Any,
        q: Any,
        q_stride: Any,
        tiles: Any,
        soon: Any,
        count: Any,
        out: Any,
        out_stride: Any,
        words: Any,
    ) -> None:
        def score_tile(tile: Any, nothing: list[Any]) -> list[Any]:
            number = builder.mul(tile, word(8))
            keys, later = (load(builder, builder.add(list_at, number), I64) for list_at in (tiles, soon))

            def add_pairs(k: Any, sums: list[Any]) -> list[Any]:
                offset = builder.mul(k, word(64))
                prefetch(builder, builder.add(later, offset))
                pairs = pairs_at(builder, builder.add(keys, offset))
                q_at = builder.add(q, builder.mul(k, word(4)))
                q_ats = [builder.add(q_at, builder.mul(q_stride, word(m))) for m in range(rows)]
                both = zip(sums, q_ats, strict=True)
                return [dot_pairs(builder, one, pairs, repeated_pair(builder, at)) for one, at in both]

            to = builder.add(out, builder.mul(tile, word(64)))
            for m, total in enumerate(repeat(builder, words, zeros(rows), add_pairs)):
                store(builder, total, builder.add(to, builder.mul(out_stride, word(m))))
            return nothing

        repeat(builder, count, [], score_tile)

    return scores


def _make_mix(rows: int) -> Any:
    """mix(p, p_stride, tiles, soon, column, stride, sums, pairs): adds p * v of so many pairs of positions
    to 32 columns of the rows' sums. tiles, soon: as above. column: bytes before the first. stride: bytes of
    a pair of values, and of a row of sums."""

    @intrinsic(types.void(*[types.int64] * 8))
    def mix(
        builder: Any,
        p: Any,
        p_stride: Any,
        tiles: Any,
        soon: Any,
        column: Any,
        stride: Any,
        sums: Any,
        pairs: Any,
    ) -> None:
        to = builder.add(sums, column)
        at = [
            builder.add(builder.add(to, builder.mul(stride, word(m))), word(64 * v))
            for m in range(rows)
            for v in range(2)
        ]

        def add_pairs(k: Any, before: list[Any]) -> list[Any]:
            number = builder.mul(builder.lshr(k, word(3)), word(8))
            offset = builder.add(column, builder.mul(builder.and_(k, word(7)), stride))
            v_at, later = (
                builder.add(load(builder, builder.add(list_at, number), I64), offset)
                for list_at in (tiles, soon)
            )
            for v in range(2):
                prefetch(builder, builder.add(later, word(64 * v)))
            halves = [pairs_at(builder, builder.add(v_at, word(64 * v))) for v in range(2)]
            p_at = builder.add(p, builder.mul(k, word(4)))
            after = []
            for m in range(rows):
                pair = repeated_pair(builder, builder.add(p_at, builder.mul(p_stride, word(m))))
                after += [dot_pairs(builder, before[2 * m + v], halves[v], pair) for v in range(2)]
            return after

        totals = repeat(builder, pairs, [load(builder, address, F32S) for address in at], add_pairs)
        for total, address in zip(totals, at, strict=True):
            store(builder, total, address)

    return mix


@intrinsic(types.void(*[types.int64] * 3))
def _copy(builder: Any, source: Any, to: Any, vectors: Any) -> None:
    """So many times 32 bytes."""

    def move(v: Any, nothing: list[Any]) -> list[Any]:
        at = builder.mul(v, word(32))
        store(builder, load(builder, builder.add(source, at), I16S), builder.add(to, at))
        return nothing

    repeat(builder, vectors, [], move)


@intrinsic(types.void(*[types.int64] * 2))
def _clear(builder: Any, to: Any, vectors: Any) -> None:
    """So many times 64 bytes."""

    def write(v: Any, nothing: list[Any]) -> list[Any]:
        store(builder, zeros(1)[0], builder.add(to, builder.mul(v, word(64))))
        return nothing

    repeat(builder, vectors, [], write)


@intrinsic(types.void(*[types.int64] * 4, types.float32, types.int64))
def _softmax(builder: Any, scores: Any, tiles: Any, first: Any, last: Any, scale: Any, total: Any) -> None:
    """scores: of [16 * tiles] float32, replaced by weights in bfloat16; their sum goes to `total`.
    Positions first .. last are visible. scale: float32."""
    factor = broadcast(builder, scale)
    first, last = (broadcast(builder, builder.trunc(bound, I32)) for bound in (first, last))
    lanes = ir.Constant(I32S, list(range(LANES)))
    hidden = ir.Constant(F32S, [float("-inf")] * LANES)

    def find_largest(tile: Any, before: list[Any]) -> list[Any]:
        at = builder.add(scores, builder.mul(tile, word(64)))
        begin = broadcast(builder, builder.trunc(builder.mul(tile, word(LANES)), I32))
        position = builder.add(lanes, begin)
        seen = builder.and_(
            builder.icmp_signed(">=", position, first), builder.icmp_signed("<=", position, last)
        )
        scaled = builder.select(seen, builder.fmul(load(builder, at, F32S), factor), hidden)
        store(builder, scaled, at)
        return [builder.select(builder.fcmp_ordered(">", scaled, before[0]), scaled, before[0])]

    (by_lane,) = repeat(builder, tiles, [hidden], find_largest)
    largest = broadcast(builder, call(builder, "llvm.vector.reduce.fmax.v16f32", F32, by_lane))

    def weigh(tile: Any, before: list[Any]) -> list[Any]:
        at = builder.add(scores, builder.mul(tile, word(64)))
        weights = exp(builder, builder.fsub(load(builder, at, F32S), largest))
        # Half as long as the scores: what is still to be read stays.
        store(builder, rounded(builder, weights), builder.add(scores, builder.mul(tile, word(32))))
        return [builder.fadd(before[0], weights)]

    (sums,) = repeat(builder, tiles, zeros(1), weigh)
    summed = call(builder, "llvm.vector.reduce.fadd.v16f32", F32, ir.Constant(F32, 0.0), sums)
    store(builder, summed, total)


@intrinsic(types.void(*[types.int64] * 4))
def _divide(builder: Any, sums: Any, total: Any, out: Any, vectors: Any) -> None:
    """out = sums / total, rounded: so many registers."""
    divisor = broadcast(builder, load(builder, total, F32))

    def write(v: Any, nothing: list[Any]) -> list[Any]:
        quotient = builder.fdiv(load(builder, builder.add(sums, builder.mul(v, word(64))), F32S), divisor)
        store(builder, rounded(builder, quotient), builder.add(out, builder.mul(v, word(32))))
        return nothing

    repeat(builder, vectors, [], write)


_scores_4, _scores_8 = _make_scores(4), _make_scores(8)
_mix_4, _mix_8 = _make_mix(4), _make_mix(8)


def _locate(plan: int, record: int, unit: int, place: int) -> None:
    """Writes down what a unit is, and where its tiles are:

    place    first position (a multiple of 16), tiles, address of the item, KV head
             then addresses of the tiles of keys, and of values
    """
    keys, values = read_i64(record + 24), read_i64(record + 32)
    kv_heads, group = read_i64(record + 72), read_i64(record + 80)
    head_dim, block_size = read_i64(record + 88), read_i64(record + 96)
    item, head = read_i64(plan) + 40 * (unit // kv_heads), unit % kv_heads
    start, table = read_i64(item), read_i64(item + 8)
    first, pairs, window = read_i64(item + 24), read_i64(item + 32), read_i64(plan + 8)
    begin = 0 if window == 0 else max(0, start + first // group - window + 1)
    tiles = (start + (first + pairs - 1) // group) // 16 + 1 - begin // 16
    write_i64(place, begin // 16 * 16)
    write_i64(place + 8, tiles)
    write_i64(place + 16, item)
    write_i64(place + 24, head)
    for tile in range(tiles):
        position = begin // 16 * 16 + 16 * tile
        block = read_i64(table + 8 * (position // block_size))
        slot = (block * kv_heads + head) * block_size + position % block_size
        write_i64(place + 32 + 8 * tile, keys + slot * 2 * head_dim)
        write_i64(place + 32 + 8 * (tiles + tile), values + slot * 2 * head_dim)


def _attend(plan: int, record: int, place: int, later: int, scratch: int) -> None:
    """One unit. later: the place of the next one, or its own."""
    query, out, scale = read_i64(record + 16), read_i64(record + 40), read_f32(record + 104)
    query_stride, out_stride = read_i64(record + 56), read_i64(record + 64)
    group, head_dim = read_i64(record + 80), read_i64(record + 88)
    base, tiles, item, head = (
        read_i64(place),
        read_i64(place + 8),
        read_i64(place + 16),
        read_i64(place + 24),
    )
    start, token, first, pairs = (
        read_i64(item),
        read_i64(item + 16),
        read_i64(item + 24),
        read_i64(item + 32),
    )
    window = read_i64(plan + 8)
    query += token * query_stride + 2 * head * group * head_dim
    out += token * out_stride + 2 * head * group * head_dim
    key_tiles, value_tiles = place + 32, place + 32 + 8 * tiles
    # The next unit's keys: as many tiles as this one has, whatever comes behind them.
    soon = later + 32 if read_i64(later + 8) * 2 >= tiles else key_tiles

    stride = tiles * 64
    queries = scratch + 8 * stride
    sums = queries + 16 * head_dim
    total, last_pair = sums + 32 * head_dim, sums + 32 * head_dim + 32
    last_tile = last_pair + 4 * head_dim
    for m in range(pairs):
        at = query + (first + m) // group * query_stride + 2 * ((first + m) % group * head_dim)
        _copy(at, queries + 2 * m * head_dim, head_dim // 16)
    _clear(sums, head_dim // 2)

    if pairs > 4:
        _scores_8(queries, 2 * head_dim, key_tiles, value_tiles, tiles, scratch, stride, head_dim // 2)
    else:
        _scores_4(queries, 2 * head_dim, key_tiles, value_tiles, tiles, scratch, stride, head_dim // 2)
    for m in range(pairs):
        own = start + (first + m) // group
        least = 0 if window == 0 else max(0, own - window + 1)
        _softmax(scratch + m * stride, tiles, least - base, own - base, scale, total + 4 * m)

    written = start + (first + pairs - 1) // group + 1 - base
    for column in range(0, 4 * head_dim, 128):
        if written < 2:
            break
        if pairs > 4:
            _mix_8(scratch, stride, value_tiles, soon, column, 4 * head_dim, sums, written // 2)
        else:
            _mix_4(scratch, stride, value_tiles, soon, column, 4 * head_dim, sums, written // 2)
    if written % 2:
        # The pair's other half is stale: its weight is 0, but 0 * NaN would be NaN.
        at = read_i64(value_tiles + 8 * (tiles - 1)) + written % 16 // 2 * 4 * head_dim
        for d in range(head_dim):
            write_u32(last_pair + 4 * d, read_u32(at + 4 * d) & 0xFFFF)
        write_i64(last_tile, last_pair)
        weights = scratch + 4 * (written // 2)
        for column in range(0, 4 * head_dim, 128):
            _mix_8(weights, stride, last_tile, last_tile, column, 4 * head_dim, sums, 1)
    for m in range(pairs):
        to = out + (first + m) // group * out_stride + 2 * ((first + m) % group * head_dim)
        _divide(sums + 4 * m * head_dim, total + 4 * m, to, head_dim // 16)


@operation
def attention(record: int, first: int, count: int, thread: int) -> None:
    """record: items * KV heads, addresses of queries, keys, values, results and plan; bytes from token to
    token of queries and results; KV heads, query heads per KV head, head size, block size, scale.

    Queries, results: [T, H, D], heads side by side. Keys, values: the layer's cache. The plan is that of
    kernels.block_attention: address of the items, window (0: none), address of scratch memory, bytes of it
    for a thread (scratch_bytes()).

    A unit's values are asked for from memory while its scores are computed, and the next unit's keys while
    its values are mixed: the blocks lie anywhere, and no CPU foresees them.
    """
    plan = read_i64(record + 48)
    size = read_i64(plan + 24)
    place = read_i64(plan + 16) + thread * size
    later = place + size // 4
    scratch = later + size // 4
    _locate(plan, record, first, place)
    for unit in range(first, first + count):
        if unit + 1 < first + count:
            _locate(plan, record, unit + 1, later)
            _attend(plan, record, place, later, scratch)
        else:
            _attend(plan, record, place, place, scratch)
        place, later = later, place
