"""kernels.paged_attention on CUDA: ragged batches of prefill and decode over the paged KV cache.

    out[t, h] = sum_j p[j] * V[j, h // G],   p = softmax_j(s[j]),   s[j] = scale * q[t, h] . K[j, h // G]
    with a soft cap c:                                              s[j] = c * tanh(scale * q . K / c)

The cache, [B, K, S, D], and what a query sees are those of kernels.paged_attention, where the reference
is. query, out: [T, H, D]; the tokens of a query may be strided, as a view of a fused projection is.
float32, float16, bfloat16; products and sums in float32 (float32 inputs: no TF32). Any head size up to
256, padded to a power of two in registers and not in memory; any block size.

One program computes QUERIES tokens of one row for one KV head: the G query heads of that head, times the
tokens, are the M rows of its products, so that keys and values are read once for all of them. Rows that
decode come first and are launched apart, with small M and, where they are few, with their KV cut into
splits, whose results a second kernel merges:

    decode    grid (R, K, splits)                 M = 16: a row has no more than a few tokens
    prefill   grid (T // QUERIES + R, K)          M = 128; a binary search finds a program's row

Bytes moved: each decoding row's keys and values once; each prefill row's once per QUERIES tokens, mostly
from L2. A split adds H * (D + 2) float32 per row, written and read.

Two things keep the loads of the next tiles in flight while one is computed: cp.async by Triton's
pipelining, and the ids of the next tile's blocks in a variable of the loop. A load of ids inside the
iteration that uses them takes a stage of the pipeline, and stages 3 and 4 then buy nothing (compiled for
sm_90: 38 KB of shared memory at any number of stages instead of 38, 70 and 102).

Source: FlashAttention-2 (Dao, 2023) for the online softmax, Flash-Decoding (Dao et al., 2023) for splits.
Speed: not yet measured on a GPU.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.gpu.attention_sizes import Sizes, choose_splits, decode_sizes, prefill_sizes
from kernels.gpu.merge_splits import merge_splits
from kernels.gpu.support import LARGEST_HEAD, next_power_of_2

LOG2E = 1.4426950408889634
"""Folded into the scale: exp2 is one instruction, exp is two."""


@dataclass(frozen=True)
class PagedBatch:
    """What the layers of one step share, on the device but for the numbers. Decoding rows come first."""

    query_starts: torch.Tensor  # [R + 1] int32: index into T of each row's first token, and the end
    lengths: torch.Tensor  # [R] int32: KV tokens with those of this step; 0: a padding row, which gets zeros
    block_tables: torch.Tensor  # [R, N] int32, rows contiguous
    num_decode_rows: int  # R of these have at most decode_queries tokens
    num_decode_tokens: int
    max_length: int  # not below any length; together with R it decides on splits
    decode_queries: int = 1


@triton.jit
def _block_ids(table, tile, num_blocks, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    """The blocks of a tile's positions: one if it lies within a block, else [TILE]."""
    if BLOCK_SIZE % TILE == 0:
        index = tile * TILE // BLOCK_SIZE
    else:
        index = (tile * TILE + tl.arange(0, TILE)) // BLOCK_SIZE
    return tl.load(table + index, mask=index < num_blocks, other=0).to(tl.int64)


@triton.jit
def _attend(
    acc,  # [M, D] float32
    largest,  # [M] float32, of the scores in base 2
    total,  # [M] float32
    query,  # [M, D]
    query_positions,  # [M]
    keys,  # of this KV head: block b, slot s at b * BLOCK_STRIDE + s * HEAD_DIM
    values,
    table,
    begin,
    end,
    length,
    scale,
    soft_cap,
    window,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    TILE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The online softmax over tiles begin .. end - 1. Not MASKED: all queries see all of these tiles."""
    dims = tl.arange(0, DIM)
    num_blocks = tl.cdiv(length, BLOCK_SIZE)
    ids = _block_ids(table, begin, num_blocks, BLOCK_SIZE, TILE)
    for tile in range(begin, end):
        here = ids
        ids = _block_ids(table, tile + 1, num_blocks, BLOCK_SIZE, TILE)
        positions = tile * TILE + tl.arange(0, TILE)
        slots = here * BLOCK_STRIDE + (positions % BLOCK_SIZE) * HEAD_DIM
        offsets = slots[:, None] + dims[None, :]
        # Slots that nobody wrote may hold inf or NaN, and 0 * NaN is NaN.
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
        scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        if HAS_CAP:  # tanh(x) = 1 - 2 / (exp(2x) + 1); exp2 of 2x log2(e), and scale has no log2(e)
            scores = soft_cap * (1 - 2 / (tl.exp2(scores * (2 * 1.4426950408889634)) + 1))
        if MASKED:
            seen = positions[None, :] <= query_positions[:, None]
            if HAS_WINDOW:
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
def _find_row(query_starts, first_row, num_rows, program, QUERIES: tl.constexpr):
    """The row of a program, and which of the row's programs it is. Row i of n begins at program
    (its first token) // QUERIES + i at the latest: enough for all programs of the rows before it."""
    origin = tl.load(query_starts + first_row)
    low, high = 0, num_rows
    while low + 1 < high:
        middle = (low + high) // 2
        start = (tl.load(query_starts + first_row + middle) - origin) // QUERIES + middle
        low = tl.where(start <= program, middle, low)
        high = tl.where(start <= program, high, middle)
    start = (tl.load(query_starts + first_row + low) - origin) // QUERIES + low
    return first_row + low, program - start


# Triton compiles anew for a number that is 1, or a multiple of 16: not for those that steps differ in.
@triton.jit(do_not_specialize=["first_row", "num_rows", "table_stride", "least_tiles"])
def _attention_kernel(
    query,  # [T, H, D]
    key_cache,  # [B, K, S, D]
    value_cache,  # [B, K, S, D]
    out,  # [T, H, D]; SPLIT: [T', H, splits, D] float32
    stats,  # SPLIT: [T', H, splits, 2] float32, largest score and total weight
    query_starts,  # [R + 1]
    lengths,  # [R]
    block_tables,  # [R, N]
    first_row,
    num_rows,
    query_stride,
    table_stride,
    least_tiles,
    scale,
    soft_cap,
    window,
    NUM_KV: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    DECODE: tl.constexpr,
    SPLIT: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    head, split, splits = tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    if DECODE:
        row, piece = first_row + tl.program_id(0), 0
    else:  # a row's last tokens see most: they begin first
        program = tl.num_programs(0) - 1 - tl.program_id(0)
        row, piece = _find_row(query_starts, first_row, num_rows, program, QUERIES)
    first_token = tl.load(query_starts + row)
    count = tl.load(query_starts + row + 1) - first_token
    if piece * QUERIES >= count:
        return
    length = tl.load(lengths + row)
    context = length - count

    m = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    token = piece * QUERIES + m // GROUP
    heads = head * GROUP + m % GROUP
    valid = (m < QUERIES * GROUP) & (token < count)
    query_at = (first_token + token).to(tl.int64) * query_stride + heads * HEAD_DIM
    inside = valid[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(query + query_at[:, None] + dims[None, :], mask=inside, other=0.0)

    first_position = context + piece * QUERIES
    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(first_position - window + 1, 0) // TILE
    end = tl.cdiv(tl.minimum(first_position + QUERIES, length), TILE)
    if SPLIT:
        tiles = tl.maximum(tl.cdiv(end - begin, splits), least_tiles)
        begin += split * tiles
        end = tl.minimum(end, begin + tiles)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    largest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    keys = key_cache + head * BLOCK_SIZE * HEAD_DIM
    values = value_cache + head * BLOCK_SIZE * HEAD_DIM
    table = block_tables + row.to(tl.int64) * table_stride
    stride: tl.constexpr = NUM_KV * BLOCK_SIZE * HEAD_DIM
    if not DECODE and not HAS_WINDOW:
        full = tl.minimum((first_position + 1) // TILE, end)
        acc, largest, total = _attend(
            acc, largest, total, q, context + token, keys, values, table, begin, full, length,
            scale, soft_cap, window, HEAD_DIM, DIM, BLOCK_SIZE, stride, TILE, HAS_CAP, False, False,
        )  # fmt: skip
        begin = full
    acc, largest, total = _attend(
        acc, largest, total, q, context + token, keys, values, table, begin, end, length,
        scale, soft_cap, window, HEAD_DIM, DIM, BLOCK_SIZE, stride, TILE, HAS_CAP, HAS_WINDOW, True,
    )  # fmt: skip

    at = (first_token + token).to(tl.int64) * (NUM_KV * GROUP) + heads
    if SPLIT:
        at = at * splits + split
        tl.store(stats + 2 * at, largest, mask=valid)
        tl.store(stats + 2 * at + 1, total, mask=valid)
        result = acc
    else:
        result = acc / tl.where(total > 0, total, 1.0)[:, None]  # 0: a padding row
    result_at = at[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out + result_at, result.to(out.dtype.element_ty), mask=inside)


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    chunk: int | None = None,
) -> torch.Tensor:
    """[T, H, D] -> [T, H, D], contiguous. Tokens behind the last row's are not written.

    window: KV tokens that a query sees, itself included. chunk: KV tokens of a split, whatever the batch,
    so that a row's result is bitwise the same in any company; None: as many as keep the device busy.
    Of a cache in blocks, only slots below a row's length are looked at.
    """
    num_heads, head_dim = query.shape[1:]
    num_kv = key_cache.shape[1]
    assert query.stride()[1:] == (head_dim, 1) and head_dim <= LARGEST_HEAD and num_heads % num_kv == 0
    assert key_cache.is_contiguous() and value_cache.is_contiguous() and batch.block_tables.stride(1) == 1
    assert query.dtype == key_cache.dtype == value_cache.dtype and key_cache.shape == value_cache.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    decode_rows, rows = batch.num_decode_rows, batch.lengths.shape[0]
    options = query, key_cache, value_cache, batch, scale, window, soft_cap
    if decode_rows:
        sizes = decode_sizes(batch.decode_queries * (num_heads // num_kv), head_dim, query.dtype)
        splits, least = choose_splits(decode_rows * num_kv, batch.max_length, chunk, sizes.tile, query.device)
        if splits == 1:
            _launch(out, None, (decode_rows, num_kv, 1), 0, decode_rows, least, sizes, *options)
        else:
            shape = (batch.num_decode_tokens, num_heads, splits)
            parts = torch.empty((*shape, head_dim), dtype=torch.float32, device=query.device)
            stats = torch.empty((*shape, 2), dtype=torch.float32, device=query.device)
            _launch(parts, stats, (decode_rows, num_kv, splits), 0, decode_rows, least, sizes, *options)
            merge_splits(parts, stats, out)
    if rows > decode_rows:
        sizes = prefill_sizes(head_dim, query.dtype)
        queries = max(1, sizes.rows // (num_heads // num_kv))
        programs = (query.shape[0] - batch.num_decode_tokens) // queries + rows - decode_rows
        _launch(out, None, (programs, num_kv, 1), decode_rows, rows - decode_rows, 0, sizes, *options)
    return out


def _launch(
    out: torch.Tensor,
    stats: torch.Tensor | None,
    grid: tuple[int, int, int],
    first_row: int,
    num_rows: int,
    least_tiles: int,
    sizes: Sizes,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> None:
    """first_row = 0: rows that decode; unless nothing does."""
    _, num_kv, block_size, head_dim = key_cache.shape
    group = query.shape[1] // num_kv
    decode = first_row < batch.num_decode_rows
    queries = batch.decode_queries if decode else max(1, sizes.rows // group)
    # Scores are in base 2. With a cap the factor log2(e) comes after tanh, else it is part of the scale.
    factor, cap = (scale * LOG2E, 0.0) if soft_cap is None else (scale / soft_cap, soft_cap * LOG2E)
    _attention_kernel[grid](
        query,
        key_cache,
        value_cache,
        out,
        stats,
        batch.query_starts,
        batch.lengths,
        batch.block_tables,
        first_row,
        num_rows,
        query.stride(0),
        batch.block_tables.stride(0),
        least_tiles,
        factor,
        cap,
        window or 0,
        NUM_KV=num_kv,
        GROUP=group,
        HEAD_DIM=head_dim,
        DIM=max(16, next_power_of_2(head_dim)),
        BLOCK_SIZE=block_size,
        TILE=sizes.tile,
        QUERIES=queries,
        ROWS=max(sizes.rows, next_power_of_2(queries * group)),
        DECODE=decode,
        SPLIT=stats is not None,
        HAS_CAP=soft_cap is not None,
        HAS_WINDOW=window is not None,
        num_warps=sizes.warps,
        num_stages=sizes.stages,
    )
