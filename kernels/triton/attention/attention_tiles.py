"""The inner loop of kernels.triton.attention.paged_attention: an online softmax over the tiles of a row's KV.

For a tile of keys k and values v, with m, l, a the largest score so far, the sum of weights, and the weighted
sum of values (scores in base 2: log2(e) is in their scale, since exp2 is one instruction and exp is two):

    s = scores(q, k),   m' = max(m, max s),   p = 2 ** (s - m')
    l = l * 2 ** (m - m') + sum p,   a = a * 2 ** (m - m') + p v,   m = m'

    scores(q, k)[i, j] = q[i] . k[j] * scale                                      j: position of the key
                       = cap * tanh(q[i] . k[j] * scale)                          with a soft cap
                       + slope[i] * (j - position of q[i])                        with ALiBi
                       = -inf where j > position of q[i], or j <= it - window; with chunks, where
                         j < it // window * window

Bytes moved: the tile's keys and values, once. Source: FlashAttention-2 (Dao, 2023); ALiBi (Press et al.,
2021).

Two things keep the loads of the next tiles in flight while one is computed: cp.async by Triton's
pipelining, and the block ids of the next tile in a loop-carried variable. A load of ids inside the
iteration that uses them takes a stage of the pipeline, and stages 3 and 4 then buy nothing (compiled for
sm_90: 38 KB of shared memory at any number of stages instead of 38, 70 and 102).
"""

import triton
import triton.language as tl


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
            seen = positions[None, :] <= query_positions[:, None]
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
