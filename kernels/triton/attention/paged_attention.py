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

A program computes QUERIES tokens of one row for one KV head at a time: the G query heads of that head, times
the tokens, are the M rows of its products, so that keys and values are read once for all of them. What there
is to compute is a list that the device makes (kernels.triton.attention.work_list), the same for rows that
decode and for pieces of prompts: rows with more than a fair share of a step's chunks are shared by programs.

    grid (items that there may be, K)        programs beyond the list end at once

What a query gets is defined by its position alone, and by its row's length where attention is bidirectional,
or by the last position that it sees where that is given.
KV is cut into chunks of CHUNK positions, each attended to by itself, tile after tile, and chunks are merged
in ascending order (kernels.triton.attention.merge_chunks): in registers by a program that has all of them,
else by a second kernel. Products and sums are not fused by the compiler, which would fuse them in one of
these two and not in the other. So a row alone and among others, a prompt whole and in pieces, and a token
that decodes and the same token behind a resumption get the same bits.

Bytes moved: each row's keys and values once per QUERIES tokens, for prompts mostly from L2. Where rows are
shared 4 * (D + 2) per head and chunk, written and read. Each is 2 bytes of a value, or 1 as
e4m3.

Source: FlashAttention-2 (Dao, 2023) for the online softmax, which is in
kernels.triton.attention.attention_kernel; Flash-Decoding (Dao et al., 2023) for programs that share a row;
Xiao et al., 2023, for sinks. Speed: not yet measured on a GPU.
"""

from dataclasses import dataclass, field

import torch

from kernels.ops.attention.e4m3 import E4M3
from kernels.triton.attention.attention_kernel import _attention_kernel
from kernels.triton.attention.attention_sizes import (
    CHUNK,
    MOST_PART_BYTES,
    PROGRAMS_PER_PROCESSOR,
    TileSizes,
    most_registers,
    num_chunks,
    tile_sizes,
)
from kernels.triton.attention.fp8 import KVScales
from kernels.triton.attention.merge_chunks import LOG2E, merge_shared
from kernels.triton.attention.work_list import WorkList, WorkShape, make_work_list
from kernels.triton.capabilities import capability_of
from kernels.triton.requirements import (
    LARGEST_HEAD,
    LARGEST_QUANTIZED_HEAD,
    next_power_of_2,
    num_processors,
)


@dataclass(frozen=True)
class PagedBatch:
    """The inputs of attention that the layers of one step share."""

    query_starts: torch.Tensor  # [R + 1] int32: index into T of each row's first token, and the end
    lengths: torch.Tensor  # [R] int32: KV tokens with those of this step; 0: a padding row, which gets zeros
    block_tables: torch.Tensor  # [R, N] int32, rows contiguous
    max_length: int  # at least the largest length
    work: dict[WorkShape, WorkList] = field(default_factory=dict, compare=False, repr=False)
    """The lists that layers have asked for, of which each is made once."""

    def work_list(self, tokens: int, shape: WorkShape) -> WorkList:
        """Returns what layers of this shape compute; tokens: T."""
        if shape not in self.work:
            self.work[shape] = make_work_list(self.query_starts, self.lengths, tokens, shape)
        return self.work[shape]


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
    most_chunks: int | None = None,
    chunked: bool = False,
    bidirectional: bool = False,
    last_seen: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns attention of query [T, H, D] as [T, H, D], contiguous. Tokens behind the last row are not
    written.

    window, chunked: see kernels.ops.attention.gather_plan.first_seen; what a query sees there as its chunk is
    no chunk of the merge. bidirectional: see last_seen there; a row has all of its tokens in this step.
    last_seen: [T] int64, contiguous: the last position that each token sees, its own or a later one of its
    row in this step, not descending within a row; None: its own.
    sinks, slopes: [H] float32. scales: of a cache of e4m3, and of no other. most_chunks: that one program
    computes of a row, which changes no bit; None: a fair share. Only slots below a row's length are read.
    """
    num_heads, head_dim = query.shape[1:]
    num_kv = key_cache.shape[1]
    assert query.stride()[1:] == (head_dim, 1) and head_dim <= LARGEST_HEAD and num_heads % num_kv == 0
    assert key_cache.is_contiguous() and value_cache.is_contiguous() and batch.block_tables.stride(1) == 1
    assert key_cache.dtype == value_cache.dtype == (query.dtype if scales is None else E4M3)
    assert key_cache.shape == value_cache.shape
    assert scales is None or head_dim <= LARGEST_QUANTIZED_HEAD
    assert last_seen is None or (last_seen.is_contiguous() and not bidirectional)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if not batch.lengths.shape[0]:
        return out
    options = window, chunked, bidirectional, last_seen, soft_cap, sinks, slopes, scales
    inputs = _Inputs(query, key_cache, value_cache, batch, scale, *options)
    group, capability = num_heads // num_kv, capability_of(query.device)
    sizes = tile_sizes(group, head_dim, query.dtype, scales is not None, capability)
    shape = _work_shape(inputs, sizes.rows // group, most_chunks)
    work, room = batch.work_list(query.shape[0], shape), (shape.capacity, num_heads)
    parts = torch.empty((*room, head_dim), dtype=torch.float32, device=query.device)
    stats = torch.empty((*room, 2), dtype=torch.float32, device=query.device)
    _launch(out, parts, stats, work, shape, sizes, inputs)
    if shape.capacity:
        value_scales = None if scales is None else scales.value
        rows = batch.query_starts, batch.lengths
        merge_shared(
            *(parts, stats, out, work, *rows, num_kv, window, sinks, value_scales),
            chunked=chunked,
            bidirectional=bidirectional,
            last_seen=last_seen,
        )
    return out


@dataclass(frozen=True)
class _Inputs:
    """Those of a launch."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    batch: PagedBatch
    scale: float
    window: int | None
    chunked: bool
    bidirectional: bool
    last_seen: torch.Tensor | None
    soft_cap: float | None
    sinks: torch.Tensor | None
    slopes: torch.Tensor | None
    scales: KVScales | None


def _work_shape(inputs: _Inputs, queries: int, most_chunks: int | None) -> WorkShape:
    """Returns what the work list is of, and has room for. With a fair share, a shared row has fewer pieces
    than there are programs for each KV head: it has more chunks than all rows together have for each of
    these."""
    tokens, heads, head_dim = inputs.query.shape
    num_kv, chunks = inputs.key_cache.shape[1], num_chunks(inputs.batch.max_length)
    programs = PROGRAMS_PER_PROCESSOR * num_processors(inputs.query.device)
    per_head, capacity, shared_items = -(-programs // num_kv), 0, 0
    if chunks > 1:
        shared_items = (tokens // queries + inputs.batch.lengths.shape[0]) * chunks
        if most_chunks is None:
            tokens, shared_items = min(tokens, queries * per_head), min(shared_items, 3 * per_head)
        capacity = min(tokens * chunks, MOST_PART_BYTES // (4 * heads * (head_dim + 2)))
    about = inputs.window, inputs.window is not None and inputs.chunked
    return WorkShape(queries, num_kv, programs, capacity, shared_items, CHUNK, *about, most=most_chunks or 0)


def _launch(
    out: torch.Tensor,
    parts: torch.Tensor,
    stats: torch.Tensor,
    work: WorkList,
    shape: WorkShape,
    sizes: TileSizes,
    inputs: _Inputs,
) -> None:
    """Launches a program for each item that there may be, and KV head."""
    query, cap, scales = inputs.query, inputs.soft_cap, inputs.scales
    batch, (_, num_kv, block_size, head_dim) = inputs.batch, inputs.key_cache.shape
    # Scores are in base 2. With a cap the factor log2(e) comes after tanh, else it is part of the scale.
    scale = inputs.scale * LOG2E.value if cap is None else inputs.scale / cap
    _attention_kernel[(work.items.shape[0], num_kv)](
        query,
        inputs.key_cache,
        inputs.value_cache,
        out,
        parts,
        stats,
        work.items,
        work.count,
        work.places,
        batch.query_starts,
        batch.lengths,
        batch.block_tables,
        inputs.last_seen,
        inputs.sinks,
        inputs.slopes,
        None if scales is None else scales.key,
        None if scales is None else scales.value,
        query.stride(0),
        batch.block_tables.stride(0),
        scale,
        (cap or 0.0) * LOG2E.value,
        inputs.window or 0,
        NUM_KV=num_kv,
        GROUP=query.shape[1] // num_kv,
        HEAD_DIM=head_dim,
        DIM=max(16, next_power_of_2(head_dim)),
        BLOCK_SIZE=block_size,
        TILE=sizes.tile,
        CHUNK=CHUNK,
        QUERIES=shape.queries,
        ROWS=sizes.rows,
        HAS_CAP=cap is not None,
        HAS_WINDOW=inputs.window is not None,
        CHUNKED=shape.chunked,
        BIDIRECTIONAL=inputs.bidirectional,
        num_warps=sizes.warps,
        num_stages=sizes.stages,
        maxnreg=most_registers(sizes, head_dim, query.dtype, capability_of(query.device)),
        enable_fp_fusion=False,
    )
