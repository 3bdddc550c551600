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
a power of two in registers and not in memory; with e4m3 up to 128, since larger ones would spill; any block
size.

One program computes QUERIES tokens of one row for one KV head: the G query heads of that head, times the
tokens, are the M rows of its products, so that keys and values are read once for all of them. Rows that
decode come first and are launched apart; where they are few, several programs share the chunks of each:

    decode    grid (R * pieces, K, splits)        program s has the chunks s, s + splits, ... of its row
    prefill   grid (T // QUERIES + R, K)          a binary search finds a program's row

What a query gets is defined by its position alone. KV is cut into chunks of CHUNK positions, each attended to
by itself, tile after tile, and chunks are merged in ascending order (kernels.triton.attention.merge_chunks):
in registers by a program that has all of them, else by a second kernel. Tiles, the matrix instruction and the
spread of sums over threads are the same for all launches, and products and sums are not fused by the
compiler, which would fuse them in one variant and not in the other. So a row alone and among others, a prompt
whole and in pieces, and a token that decodes and the same token behind a resumption get the same bits.

Bytes moved: each decoding row's keys and values once; each prefill row's once per QUERIES tokens, mostly
from L2. With splits 4 * (D + 2) per head and chunk, written and read. Each is 2 bytes of a value, or 1 as
e4m3.

Source: FlashAttention-2 (Dao, 2023) for the online softmax, which is in
kernels.triton.attention.attention_tiles; Flash-Decoding (Dao et al., 2023) for programs that share a row;
Xiao et al., 2023, for sinks. Speed: not yet measured on a GPU.
"""

from dataclasses import dataclass

import torch

from kernels.ops.attention.e4m3 import E4M3
from kernels.triton.attention.attention_kernel import _attention_kernel
from kernels.triton.attention.attention_sizes import (
    CHUNK,
    TileSizes,
    choose_splits,
    num_chunks,
    tile_sizes,
)
from kernels.triton.attention.fp8 import KVScales
from kernels.triton.attention.merge_chunks import LOG2E, merge_chunks
from kernels.triton.capabilities import capability_of
from kernels.triton.requirements import LARGEST_HEAD, LARGEST_QUANTIZED_HEAD, next_power_of_2


@dataclass(frozen=True)
class PagedBatch:
    """The inputs of attention that the layers of one step share. Decoding rows come first."""

    query_starts: torch.Tensor  # [R + 1] int32: index into T of each row's first token, and the end
    lengths: torch.Tensor  # [R] int32: KV tokens with those of this step; 0: a padding row, which gets zeros
    block_tables: torch.Tensor  # [R, N] int32, rows contiguous
    num_decode_rows: int  # of R: rows of at most decode_queries tokens
    num_decode_tokens: int
    max_length: int  # at least the largest length
    decode_queries: int = 1


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    scales: KVScales | None = None,
    splits: int | None = None,
    chunked: bool = False,
) -> torch.Tensor:
    """Returns attention of query [T, H, D] as [T, H, D], contiguous. Tokens behind the last row are not
    written.

    window, chunked: see kernels.ops.attention.first_seen; what a query sees there as its chunk is no chunk of
    the merge. sinks, slopes: [H] float32. scales: of a cache of
    e4m3, and of no other. splits: programs that share a decoding row, which changes no bit; None: as many as
    keep the device busy. Only slots below a row's length are read.
    """
    num_heads, head_dim = query.shape[1:]
    num_kv = key_cache.shape[1]
    assert query.stride()[1:] == (head_dim, 1) and head_dim <= LARGEST_HEAD and num_heads % num_kv == 0
    assert key_cache.is_contiguous() and value_cache.is_contiguous() and batch.block_tables.stride(1) == 1
    assert key_cache.dtype == value_cache.dtype == (query.dtype if scales is None else E4M3)
    assert key_cache.shape == value_cache.shape
    assert scales is None or head_dim <= LARGEST_QUANTIZED_HEAD
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    options = soft_cap, sinks, slopes, scales
    inputs = _Inputs(query, key_cache, value_cache, batch, scale, window, chunked, *options)
    group, capability = num_heads // num_kv, capability_of(query.device)
    sizes = tile_sizes(group, head_dim, query.dtype, scales is not None, capability)
    decode_rows, rows = batch.num_decode_rows, batch.lengths.shape[0]
    if decode_rows:
        _launch_decode(out, splits, sizes, inputs)
    if rows > decode_rows:
        queries = sizes.rows // group
        programs = (query.shape[0] - batch.num_decode_tokens) // queries + rows - decode_rows
        _launch(out, None, (programs, num_kv, 1), decode_rows, sizes, inputs)
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
    chunked: bool
    soft_cap: float | None
    sinks: torch.Tensor | None
    slopes: torch.Tensor | None
    scales: KVScales | None


def _launch_decode(out: torch.Tensor, splits: int | None, sizes: TileSizes, inputs: _Inputs) -> None:
    """Launches the rows that decode, and what merges their chunks where programs share them."""
    query, batch, (_, num_kv, _, head_dim) = inputs.query, inputs.batch, inputs.key_cache.shape
    rows, heads, chunks = batch.num_decode_rows, query.shape[1], num_chunks(batch.max_length)
    pieces = -(-batch.decode_queries // (sizes.rows // (heads // num_kv)))
    if splits is None:
        tokens, per_chunk = batch.num_decode_tokens, 4 * heads * (head_dim + 2)
        splits = choose_splits(rows * pieces * num_kv, tokens, per_chunk, chunks, query.device)
    grid = rows * pieces, num_kv, splits
    if splits == 1:
        _launch(out, None, grid, 0, sizes, inputs)
        return
    shape = batch.num_decode_tokens, heads, chunks
    parts = torch.empty((*shape, head_dim), dtype=torch.float32, device=query.device)
    stats = torch.empty((*shape, 2), dtype=torch.float32, device=query.device)
    _launch(parts, stats, grid, 0, sizes, inputs)
    value_scales = None if inputs.scales is None else inputs.scales.value
    fields = batch.query_starts, batch.lengths, (rows, num_kv), inputs.window, inputs.sinks, value_scales
    merge_chunks(parts, stats, out, *fields, inputs.chunked)


def _launch(
    out: torch.Tensor,
    stats: torch.Tensor | None,
    grid: tuple[int, int, int],
    first_row: int,
    sizes: TileSizes,
    inputs: _Inputs,
) -> None:
    """Launches rows first_row and following; the first num_decode_rows of the batch decode."""
    query, batch, cap, scales = inputs.query, inputs.batch, inputs.soft_cap, inputs.scales
    _, num_kv, block_size, head_dim = inputs.key_cache.shape
    group = query.shape[1] // num_kv
    queries, decode = sizes.rows // group, first_row < batch.num_decode_rows
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
        batch.lengths.shape[0] - first_row,
        query.stride(0),
        batch.block_tables.stride(0),
        -(-batch.decode_queries // queries),
        1 if stats is None else stats.shape[2],
        scale,
        (cap or 0.0) * LOG2E.value,
        inputs.window or 0,
        NUM_KV=num_kv,
        GROUP=group,
        HEAD_DIM=head_dim,
        DIM=max(16, next_power_of_2(head_dim)),
        BLOCK_SIZE=block_size,
        TILE=sizes.tile,
        CHUNK=CHUNK,
        QUERIES=queries,
        ROWS=sizes.rows,
        DECODE=decode,
        SPLIT=stats is not None,
        HAS_CAP=cap is not None,
        HAS_WINDOW=inputs.window is not None,
        CHUNKED=inputs.window is not None and inputs.chunked,
        num_warps=sizes.warps,
        num_stages=sizes.stages,
        enable_fp_fusion=False,
    )
