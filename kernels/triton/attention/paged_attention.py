"""kernels.ops.attention.paged_attention on CUDA: ragged batches of prefill and decode over the paged KV
cache.

    out[t, h] = sum_j p[j] * V[j, h // G],   p[j] = exp(s[j]) / (sum_i exp(s[i]) + exp(sink[h]))
    s[j] = scale * q[t, h] . K[j, h // G]                          with a soft cap: cap * tanh(that / cap)
         + slope[h] * (j - position of t)                          with ALiBi

without exp(sink[h]) where there are no sinks: a learned score per head (GPT-OSS) that takes weight and has
no value. The cache, [B, K, S, D], and what a query sees are those of kernels.ops.attention.paged_attention,
where the reference is. query, out: [T, H, D]; the tokens of a query may be strided, as a view of a fused
projection is. float32, float16, bfloat16; products and sums in float32 (float32 inputs: no TF32). The cache
has the same dtype, or is e4m3 with scales (kernels.triton.attention.fp8). Any head size up to 256, padded to
a power of two in registers and not in memory; any block size.

One program computes QUERIES tokens of one row for one KV head: the G query heads of that head, times the
tokens, are the M rows of its products, so that keys and values are read once for all of them. Rows that
decode come first and are launched apart, with small M and, where they are few, with their KV cut into
splits, whose results a second kernel merges; a batch without decoding rows is one launch:

    decode    grid (R, K, splits)                 M = 16: a row has a few tokens at most
    prefill   grid (T // QUERIES + R, K)          M = 128; a binary search finds a program's row

Bytes moved: each decoding row's keys and values once; each prefill row's once per QUERIES tokens, mostly
from L2. A split adds H * (D + 2) float32 per row, written and read. Each is 2 bytes of a value, or 1 as e4m3.

Source: FlashAttention-2 (Dao, 2023) for the online softmax, which is in
kernels.triton.attention.attention_tiles; Flash-Decoding (Dao et al., 2023) for splits; Xiao et al., 2023,
for sinks. Speed: not yet measured on a GPU.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.triton.attention.attention_sizes import TileSizes, choose_splits, decode_sizes, prefill_sizes
from kernels.triton.attention.attention_tiles import attend
from kernels.triton.attention.fp8 import DTYPE as E4M3
from kernels.triton.attention.fp8 import KVScales
from kernels.triton.attention.merge_splits import merge_splits
from kernels.triton.capabilities import capability_of
from kernels.triton.requirements import LARGEST_HEAD, next_power_of_2

LOG2E = tl.constexpr(1.4426950408889634)
"""Scores are in base 2."""


@dataclass(frozen=True)
class PagedBatch:
    """The inputs of attention that the layers of one step share. Decoding rows come first."""

    query_starts: torch.Tensor  # [R + 1] int32: index into T of each row's first token, and the end
    lengths: torch.Tensor  # [R] int32: KV tokens with those of this step; 0: a padding row, which gets zeros
    block_tables: torch.Tensor  # [R, N] int32, rows contiguous
    num_decode_rows: int  # of R: rows of at most decode_queries tokens
    num_decode_tokens: int
    max_length: int  # at least the largest length; with R it determines the splits
    decode_queries: int = 1


@triton.jit
def _find_row(query_starts, first_row, num_rows, program, QUERIES: tl.constexpr):
    """Returns the row of a program and the program's number in that row. Row i of n begins at program
    (its first token) // QUERIES + i at the latest, which leaves room for the programs of earlier rows."""
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
    sinks,  # [H] float32, or None; so the next three
    slopes,  # [H] float32
    key_scales,  # [K] float32
    value_scales,  # [K] float32
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
    if sinks is not None:  # as if a key had been seen whose value is 0: by the first split alone
        sink = tl.load(sinks + heads, mask=valid, other=0.0) * LOG2E
        largest = tl.where(split == 0, sink, largest)
        total += tl.where(split == 0, 1.0, 0.0)
    slope = None
    if slopes is not None:
        slope = tl.load(slopes + heads, mask=valid, other=0.0) * LOG2E
    if key_scales is not None:
        scale *= tl.load(key_scales + head)
    keys = key_cache + head * BLOCK_SIZE * HEAD_DIM
    values = value_cache + head * BLOCK_SIZE * HEAD_DIM
    table = block_tables + row.to(tl.int64) * table_stride
    stride: tl.constexpr = NUM_KV * BLOCK_SIZE * HEAD_DIM
    if not DECODE and not HAS_WINDOW:
        full = tl.minimum((first_position + 1) // TILE, end)
        # ptxas runs wgmma one by one where its accumulator has another origin on some path: a loop without
        # an iteration, and the registers of the first loop in the second. So the loop is entered only if it
        # has iterations, and the second one begins with a product by 1, of which the compiler does not know.
        if begin < full:
            acc, largest, total = attend(
                acc, largest, total, q, context + token, slope, keys, values, table, begin, full, length,
                scale, soft_cap, window, HEAD_DIM, DIM, BLOCK_SIZE, stride, TILE, HAS_CAP, False, False,
            )  # fmt: skip
        acc *= tl.where(length >= 0, 1.0, 0.0)
        begin = full
    acc, largest, total = attend(
        acc, largest, total, q, context + token, slope, keys, values, table, begin, end, length,
        scale, soft_cap, window, HEAD_DIM, DIM, BLOCK_SIZE, stride, TILE, HAS_CAP, HAS_WINDOW, True,
    )  # fmt: skip

    if value_scales is not None:
        acc *= tl.load(value_scales + head)
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
    sinks: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    scales: KVScales | None = None,
) -> torch.Tensor:
    """Returns attention of query [T, H, D] as [T, H, D], contiguous. Tokens behind the last row are not
    written.

    window: KV tokens that a query sees, itself included. chunk: KV tokens of a split, whatever the batch,
    so that a row's result is bitwise independent of its batch mates; None: as many as keep the device busy.
    sinks, slopes: [H] float32. scales: of a cache of e4m3, and of no other.
    Only slots below a row's length are read.
    """
    num_heads, head_dim = query.shape[1:]
    num_kv = key_cache.shape[1]
    assert query.stride()[1:] == (head_dim, 1) and head_dim <= LARGEST_HEAD and num_heads % num_kv == 0
    assert key_cache.is_contiguous() and value_cache.is_contiguous() and batch.block_tables.stride(1) == 1
    assert key_cache.dtype == value_cache.dtype == (query.dtype if scales is None else E4M3)
    assert key_cache.shape == value_cache.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    decode_rows, rows = batch.num_decode_rows, batch.lengths.shape[0]
    inputs = _Inputs(query, key_cache, value_cache, batch, scale, window, soft_cap, sinks, slopes, scales)
    precision, capability = (query.dtype, scales is not None), capability_of(query.device)
    if decode_rows:
        group = num_heads // num_kv
        sizes = decode_sizes(batch.decode_queries * group, head_dim, *precision, capability)
        splits, least = choose_splits(decode_rows * num_kv, batch.max_length, chunk, sizes.tile, query.device)
        if splits == 1:
            _launch(out, None, (decode_rows, num_kv, 1), 0, decode_rows, least, sizes, inputs)
        else:
            shape = (batch.num_decode_tokens, num_heads, splits)
            parts = torch.empty((*shape, head_dim), dtype=torch.float32, device=query.device)
            stats = torch.empty((*shape, 2), dtype=torch.float32, device=query.device)
            _launch(parts, stats, (decode_rows, num_kv, splits), 0, decode_rows, least, sizes, inputs)
            merge_splits(parts, stats, out)
    if rows > decode_rows:
        sizes = prefill_sizes(head_dim, *precision, capability)
        queries = max(1, sizes.rows // (num_heads // num_kv))
        programs = (query.shape[0] - batch.num_decode_tokens) // queries + rows - decode_rows
        _launch(out, None, (programs, num_kv, 1), decode_rows, rows - decode_rows, 0, sizes, inputs)
    return out


@dataclass(frozen=True)
class _Inputs:
    """The inputs of both launches."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    batch: PagedBatch
    scale: float
    window: int | None
    soft_cap: float | None
    sinks: torch.Tensor | None
    slopes: torch.Tensor | None
    scales: KVScales | None


def _launch(
    out: torch.Tensor,
    stats: torch.Tensor | None,
    grid: tuple[int, int, int],
    first_row: int,
    num_rows: int,
    least_tiles: int,
    sizes: TileSizes,
    inputs: _Inputs,
) -> None:
    """Launches rows first_row and following; the first num_decode_rows of the batch decode."""
    query, batch, cap, scales = inputs.query, inputs.batch, inputs.soft_cap, inputs.scales
    _, num_kv, block_size, head_dim = inputs.key_cache.shape
    group = query.shape[1] // num_kv
    decode = first_row < batch.num_decode_rows
    queries = batch.decode_queries if decode else max(1, sizes.rows // group)
    # Scores are in base 2. With a cap the factor log2(e) comes after tanh, else it is part of the scale.
    scale = inputs.scale * LOG2E.value if cap is None else inputs.scale / cap
    _attention_kernel[grid](
        query,
        inputs.key_cache,
        inputs.value_cache,
        out,
        stats,
        batch.query_starts,
        batch.lengths,
        batch.block_tables,
        inputs.sinks,
        inputs.slopes,
        None if scales is None else scales.key,
        None if scales is None else scales.value,
        first_row,
        num_rows,
        query.stride(0),
        batch.block_tables.stride(0),
        least_tiles,
        scale,
        (cap or 0.0) * LOG2E.value,
        inputs.window or 0,
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
        HAS_CAP=cap is not None,
        HAS_WINDOW=inputs.window is not None,
        num_warps=sizes.warps,
        num_stages=sizes.stages,
    )
