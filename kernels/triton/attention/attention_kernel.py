"""The kernel of kernels.triton.attention.paged_attention, where it is described. Its inner loop is an online
softmax over the tiles of a row's KV.

For a tile of keys k and values v, with m, l, a the largest score so far, the sum of weights, and the weighted
sum of values (scores in base 2: log2(e) is in their scale, since exp2 is one instruction and exp is two):

    s = scores(q, k),   m' = max(m, max s),   p = 2 ** (s - m')
    l = l * 2 ** (m - m') + sum p,   a = a * 2 ** (m - m') + p v,   m = m'

    scores(q, k)[i, j] = q[i] . k[j] * scale                                      j: position of the key
                       = cap * tanh(q[i] . k[j] * scale)                          with a soft cap
                       + slope[i] * (j - position of q[i])                        with ALiBi
                       = -inf where j > position of q[i], or j <= it - window; with chunks, where
                         j < it // window * window; bidirectional: where j <= it - window or j >= it + window;
                         with last_seen: where j > last_seen[i] in place of j > position of q[i]

Bytes moved: the tile's keys and values, once. Source: FlashAttention-2 (Dao, 2023); ALiBi (Press et al.,
2021).

Two things keep the loads of the next tiles in flight while one is computed: cp.async by Triton's
pipelining, and the block ids of the next tile in a loop-carried variable. A load of ids inside the
iteration that uses them takes a stage of the pipeline, and stages 3 and 4 then buy nothing (compiled for
sm_90: 38 KB of shared memory at any number of stages instead of 38, 70 and 102).
"""

import triton
import triton.language as tl

from kernels.triton.attention.merge_chunks import LOG2E, add_chunk, quotient


@triton.jit
def _block_ids(table, tile, num_blocks, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    """Returns the block ids of a tile's positions: one if the tile lies within a block, else [TILE]."""
    if BLOCK_SIZE % TILE == 0:
        index = tile * TILE // BLOCK_SIZE
    else:
        index = (tile * TILE + tl.arange(0, TILE)) // BLOCK_SIZE
    return tl.load(table + index, mask=index < num_blocks, other=0)


@triton.jit
def attend(
    query,  # [M, D]
    query_positions,  # [M]
    query_lasts,  # [M] the last position that each sees; unused: BIDIRECTIONAL
    slopes,  # [M] float32 in base 2, or None
    keys,  # of this KV head: block b, slot s at b * BLOCK_STRIDE + s * HEAD_DIM
    values,
    table,  # [N] integers: block ids of this row
    begin,
    end,
    length,
    scale,
    soft_cap,
    window,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    TILE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    BIDIRECTIONAL: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Attends to tiles begin .. end - 1 and returns acc [M, D], largest [M] and total [M], float32. Not
    MASKED: all queries see all of these tiles. A tile of which a query sees nothing changes nothing for it,
    and one that it sees whole gives the same bits masked and not."""
    acc = tl.zeros([ROWS, DIM], tl.float32)
    largest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    dims = tl.arange(0, DIM)
    num_blocks = tl.cdiv(length, BLOCK_SIZE)
    ids = _block_ids(table, begin, num_blocks, BLOCK_SIZE, TILE)
    for tile in range(begin, end):
        here = ids.to(tl.int64)  # carried in 32 bits: eight registers less
        ids = _block_ids(table, tile + 1, num_blocks, BLOCK_SIZE, TILE)
        positions = tile * TILE + tl.arange(0, TILE)
        slots = here * BLOCK_STRIDE + (positions % BLOCK_SIZE) * HEAD_DIM
        offsets = slots[:, None] + dims[None, :]
        # Slots that were never written may hold inf or NaN, and 0 * NaN is NaN.
        if MASKED:
            there = (positions < length)[:, None] & (dims < HEAD_DIM)[None, :]
            k = tl.load(keys + offsets, mask=there, other=0.0)
            v = tl.load(values + offsets, mask=there, other=0.0)
        elif DIM != HEAD_DIM:
            k = tl.load(keys + offsets, mask=(dims < HEAD_DIM)[None, :], other=0.0)
            v = tl.load(values + offsets, mask=(dims < HEAD_DIM)[None, :], other=0.0)
        else:
            k = tl.load(keys + offsets)
            v = tl.load(values + offsets)
        k, v = k.to(query.dtype), v.to(query.dtype)  # of a cache of 8 bits; exact
        scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        if HAS_CAP:  # tanh(x) = 1 - 2 / (exp(2x) + 1); exp2 of 2x log2(e), and scale has no log2(e)
            scores = soft_cap * (1 - 2 / (tl.exp2(scores * (2 * 1.4426950408889634)) + 1))
        if slopes is not None:
            distances = positions[None, :] - query_positions[:, None]
            scores += slopes[:, None] * distances.to(tl.float32)
        if MASKED:
            if BIDIRECTIONAL:
                seen = positions[None, :] < length
                if HAS_WINDOW:
                    seen &= positions[None, :] < query_positions[:, None] + window
            else:
                seen = positions[None, :] <= query_lasts[:, None]
            if CHUNKED:
                seen &= positions[None, :] >= (query_positions // window * window)[:, None]
            elif HAS_WINDOW:
                seen &= positions[None, :] > query_positions[:, None] - window
            scores = tl.where(seen, scores, -float("inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        base = new_largest
        if MASKED:  # a query that has seen nothing yet: -inf - -inf is NaN
            base = tl.where(new_largest == -float("inf"), 0.0, new_largest)
        p = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        largest = new_largest
    return acc, largest, total


@triton.jit
def _members(item, query_starts, head, GROUP: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr):
    """Returns of an item's queries: the row, the first token of it, each one's number in the row, its head,
    and whether it is one. What is loaded again takes no registers meanwhile."""
    row, piece = tl.load(item), tl.load(item + 1)
    first_token = tl.load(query_starts + row)
    tokens = tl.load(query_starts + row + 1) - first_token
    m = tl.arange(0, ROWS)
    token = piece * QUERIES + m // GROUP
    valid = (m < QUERIES * GROUP) & (token < tokens)
    return row, first_token, token, head * GROUP + m % GROUP, valid


@triton.jit
def _put(
    parts, stats, item, splits, places, query_starts, chunk, part, largest, total, head,
    NUM_KV: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Stores the results of one chunk for merge_shared(), if programs share the row."""
    if splits > 1:
        row, _, token, heads, valid = _members(item, query_starts, head, GROUP, QUERIES, ROWS)
        place = tl.load(places + 2 * row) + chunk + token * tl.load(places + 2 * row + 1)
        at = place.to(tl.int64) * (NUM_KV * GROUP) + heads
        tl.store(stats + 2 * at, largest, mask=valid)
        tl.store(stats + 2 * at + 1, total, mask=valid)
        dims = tl.arange(0, DIM)
        inside = valid[:, None] & (dims < HEAD_DIM)[None, :]
        tl.store(parts + at[:, None] * HEAD_DIM + dims[None, :], part, mask=inside)


# Triton compiles anew for a number that is 1, or a multiple of 16: not for those that steps differ in.
@triton.jit(do_not_specialize=["table_stride"])
def _attention_kernel(
    query,  # [T, H, D]
    key_cache,  # [B, K, S, D]
    value_cache,  # [B, K, S, D]
    out,  # [T, H, D]
    parts,  # [P, H, D] float32, results of chunks
    stats,  # [P, H, 2] float32, largest score and total weight
    items,  # [N, 4] row, piece, first of its chunks, programs that share the piece
    count,  # [1] how many of them there are
    places,  # [R, 2] where the parts of a row are
    query_starts,  # [R + 1]
    lengths,  # [R]
    block_tables,  # [R, N]
    last_seen,  # [T] int64, or None: the last position that each token sees is its own
    sinks,  # [H] float32, or None; so the next three
    slopes,  # [H] float32
    key_scales,  # [K] float32
    value_scales,  # [K] float32
    query_stride,
    table_stride,
    scale,
    soft_cap,
    window,
    NUM_KV: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    BIDIRECTIONAL: tl.constexpr,
):
    m = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    tiles: tl.constexpr = CHUNK // TILE
    stride: tl.constexpr = NUM_KV * BLOCK_SIZE * HEAD_DIM
    head = tl.program_id(1)
    if tl.program_id(0) >= tl.load(count):
        return
    item = items + 4 * tl.program_id(0)
    row, piece = tl.load(item), tl.load(item + 1)
    split, splits = tl.load(item + 2), tl.load(item + 3)
    first_token = tl.load(query_starts + row)
    tokens = tl.load(query_starts + row + 1) - first_token
    length = tl.load(lengths + row)
    context = length - tokens

    token = piece * QUERIES + m // GROUP
    heads = head * GROUP + m % GROUP
    valid = (m < QUERIES * GROUP) & (token < tokens)
    query_at = (first_token + token).to(tl.int64) * query_stride + heads * HEAD_DIM
    inside = valid[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(query + query_at[:, None] + dims[None, :], mask=inside, other=0.0)
    slope = None
    if slopes is not None:
        slope = tl.load(slopes + heads, mask=valid, other=0.0) * LOG2E
    factor = scale
    if key_scales is not None:
        factor *= tl.load(key_scales + head)
    keys = key_cache + head * BLOCK_SIZE * HEAD_DIM
    values = value_cache + head * BLOCK_SIZE * HEAD_DIM
    table = block_tables + row.to(tl.int64) * table_stride

    acc = tl.zeros([ROWS, DIM], tl.float32)
    largest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if sinks is not None:  # as if a key had been seen whose value is 0
        largest = tl.load(sinks + heads, mask=valid, other=0.0) * LOG2E
        total += 1.0
    first_position = context + piece * QUERIES
    begin = 0
    if CHUNKED:
        begin = tl.maximum(first_position, 0) // window * window // TILE
    elif HAS_WINDOW:
        begin = tl.maximum(first_position - window + 1, 0) // TILE
    behind_last = first_position + QUERIES  # the last position that a query of the piece sees, and one
    if BIDIRECTIONAL:
        behind_last = length
        if HAS_WINDOW:
            behind_last = first_position + QUERIES + window - 1
    lasts = context + token
    if last_seen is not None:
        lasts = tl.load(last_seen + first_token + token, mask=valid, other=0).to(tl.int32)
        behind_last = tl.max(lasts, 0) + 1
    end = tl.cdiv(tl.minimum(behind_last, length), TILE)
    chunk, behind = begin // tiles + split, tl.cdiv(end, tiles)
    if not HAS_WINDOW:  # chunks that all queries see whole
        behind_first = length if BIDIRECTIONAL else first_position + 1  # as above, of its first query
        full = tl.maximum(behind_first // CHUNK, chunk)
        for each in range(chunk, full, splits):
            part, part_largest, part_total = attend(
                q, context + token, lasts, slope, keys, values, table, each * tiles, each * tiles + tiles,
                length, factor, soft_cap, window, ROWS, HEAD_DIM, DIM, BLOCK_SIZE, stride, TILE, HAS_CAP,
                False, False, False, False,
            )  # fmt: skip
            _put(
                parts, stats, item, splits, places, query_starts, each, part, part_largest, part_total,
                head, NUM_KV, GROUP, QUERIES, ROWS, HEAD_DIM, DIM,
            )  # fmt: skip
            acc, largest, total = add_chunk(acc, largest, total, part, part_largest, part_total)
        chunk += tl.cdiv(full - chunk, splits) * splits
    for each in range(chunk, behind, splits):
        first, last = tl.maximum(begin, each * tiles), tl.minimum(end, each * tiles + tiles)
        part, part_largest, part_total = attend(
            q, context + token, lasts, slope, keys, values, table, first, last, length,
            factor, soft_cap, window, ROWS, HEAD_DIM, DIM, BLOCK_SIZE, stride, TILE, HAS_CAP,
            HAS_WINDOW, CHUNKED, BIDIRECTIONAL, True,
        )  # fmt: skip
        _put(
            parts, stats, item, splits, places, query_starts, each, part, part_largest, part_total,
            head, NUM_KV, GROUP, QUERIES, ROWS, HEAD_DIM, DIM,
        )  # fmt: skip
        acc, largest, total = add_chunk(acc, largest, total, part, part_largest, part_total)
    value_scale = None
    if value_scales is not None:
        value_scale = tl.load(value_scales + head)
    result = quotient(acc, total, value_scale).to(out.dtype.element_ty)
    if tl.load(item + 3) == 1:
        row, first_token, token, heads, valid = _members(item, query_starts, head, GROUP, QUERIES, ROWS)
        at = (first_token + token).to(tl.int64) * (NUM_KV * GROUP) + heads
        inside = valid[:, None] & (dims < HEAD_DIM)[None, :]
        tl.store(out + at[:, None] * HEAD_DIM + dims[None, :], result, mask=inside)
