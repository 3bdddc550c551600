"""Merges the results of the chunks of a query's KV, each a softmax over its own part, one after the other.

    m' = max(m, m[c]),   l = l * 2 ** (m - m') + l[c] * 2 ** (m[c] - m'),   a likewise,   m = m'
    out = a / l                          c ascending; begins with the sink, or with m = -inf, l = a = 0

A query has the chunks from that of the first position that it sees to that of the last; others are not
read. out: [T, H, D]; zero where there is none (a padding row). For each chunk there is the weighted sum
a[c], the largest score m[c] in base 2 and the total weight l[c], all float32:

    merge_chunks    parts [T', H, C, D], stats [T', H, C, 2]    every token has room for all chunks, T >= T'
    merge_shared    parts [P, H, D], stats [P, H, 2]            at the places of a WorkList, of shared rows

A program that computes all chunks of its queries merges them by the same function (add_chunk) in the same
order: which kernel merges changes no bit. So neither may be compiled with products and sums fused.
Bytes moved: 4 * (D + 2) per chunk and head, read.
"""

import torch
import triton
import triton.language as tl

from kernels.triton.attention.attention_sizes import CHUNK
from kernels.triton.attention.work_list import WorkList
from kernels.triton.requirements import next_power_of_2

LOG2E = tl.constexpr(1.4426950408889634)
"""Scores are in base 2."""


@triton.jit
def add_chunk(acc, largest, total, part, part_largest, part_total):
    """Returns acc [M, D], largest [M] and total [M] with those of the next chunk. A chunk of which a query
    sees nothing (-inf, and zeros) changes nothing."""
    new = tl.maximum(largest, part_largest)
    base = tl.where(new == -float("inf"), 0.0, new)  # -inf - -inf is NaN
    keep, take = tl.exp2(largest - base), tl.exp2(part_largest - base)
    total = total * keep + part_total * take
    acc = acc * keep[:, None] + part * take[:, None]
    return acc, new, total


@triton.jit
def quotient(acc, total, scale):
    """Returns the result of acc [M, D] and total [M]; scale: of the values, or None."""
    if scale is not None:
        acc *= scale
    return acc / tl.where(total > 0, total, 1.0)[:, None]  # 0: a padding row


@triton.jit
def _merge_one(
    parts,
    stats,
    at,  # [HEADS] index of chunk 0, of each head
    step,  # from one chunk to the next
    begin,
    end,
    sink,  # [HEADS] in base 2, or None
    scale,
    ours,  # [HEADS]
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
):
    """Returns the result [HEADS, DIM] of one token from its chunks begin .. end - 1."""
    dims = tl.arange(0, DIM)
    inside = ours[:, None] & (dims < HEAD_DIM)[None, :]
    acc = tl.zeros([HEADS, DIM], tl.float32)
    largest = tl.full([HEADS], -float("inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    if sink is not None:
        largest = sink
        total += 1.0
    for chunk in range(begin, end):
        place = at + chunk * step
        part_largest = tl.load(stats + 2 * place, mask=ours, other=0.0)
        part_total = tl.load(stats + 2 * place + 1, mask=ours, other=0.0)
        part = tl.load(parts + place[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
        acc, largest, total = add_chunk(acc, largest, total, part, part_largest, part_total)
    return quotient(acc, total, scale)


@triton.jit(do_not_specialize=["chunks"])
def _merge_kernel(
    parts,  # [T', H, C, D]
    stats,  # [T', H, C, 2]
    out,  # [T, H, D]
    query_starts,  # [R + 1]
    lengths,  # [R]
    chunks,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1) + tl.arange(0, 1)
    first_token, end = tl.load(query_starts + row), tl.load(query_starts + row + 1)
    context = tl.load(lengths + row) - (end - first_token)
    dims = tl.arange(0, DIM)
    for index in range(0, end - first_token):
        at = (first_token + index).to(tl.int64) * HEADS + head
        last = tl.cdiv(context + index + 1, CHUNK)
        ours = head < HEADS
        result = _merge_one(parts, stats, at * chunks, 1, 0, last, None, None, ours, 1, HEAD_DIM, DIM)
        inside = ours[:, None] & (dims < HEAD_DIM)[None, :]
        tl.store(out + at[:, None] * HEAD_DIM + dims[None, :], result.to(out.dtype.element_ty), mask=inside)


def merge_chunks(
    parts: torch.Tensor,
    stats: torch.Tensor,
    out: torch.Tensor,
    query_starts: torch.Tensor,
    lengths: torch.Tensor,
) -> None:
    """Writes the tokens of rows, query_starts: [R + 1], lengths: [R], each of which sees all before it. One
    program per row and head."""
    _, heads, chunks, head_dim = parts.shape
    assert out.is_contiguous() and parts.is_contiguous() and stats.is_contiguous()
    _merge_kernel[(lengths.shape[0], heads)](
        parts,
        stats,
        out,
        query_starts,
        lengths,
        chunks,
        HEADS=heads,
        HEAD_DIM=head_dim,
        DIM=next_power_of_2(head_dim),
        CHUNK=CHUNK,
        num_warps=4,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["window"])
def _merge_shared_kernel(
    parts,  # [P, H, D]
    stats,  # [P, H, 2]
    out,  # [T, H, D]
    token_rows,  # [T] -1: nothing to merge
    places,  # [R, 2]
    query_starts,  # [R + 1]
    lengths,  # [R]
    last_seen,  # [T] int64, or None
    sinks,  # [H] float32 in base e, or None
    value_scales,  # [K] float32, or None
    window,
    NUM_KV: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    BIDIRECTIONAL: tl.constexpr,
):
    token, kv_head = tl.program_id(0), tl.program_id(1)
    row = tl.load(token_rows + token)
    if row < 0:
        return
    first_token, behind = tl.load(query_starts + row), tl.load(query_starts + row + 1)
    index = token - first_token
    length = tl.load(lengths + row)
    position = length - (behind - token)
    begin = 0
    if CHUNKED:
        begin = tl.maximum(position, 0) // window * window // CHUNK
    elif HAS_WINDOW:
        begin = tl.maximum(position - window + 1, 0) // CHUNK
    member, dims = tl.arange(0, HEADS), tl.arange(0, DIM)
    head, ours = kv_head * GROUP + member, member < GROUP
    sink, scale = None, None
    if sinks is not None:
        sink = tl.load(sinks + head, mask=ours, other=0.0) * LOG2E
    if value_scales is not None:
        scale = tl.load(value_scales + kv_head)
    place = tl.load(places + 2 * row) + index * tl.load(places + 2 * row + 1)
    at = place.to(tl.int64) * (NUM_KV * GROUP) + head
    behind_last = position + 1
    if BIDIRECTIONAL:
        behind_last = length
        if HAS_WINDOW:
            behind_last = tl.minimum(position + window, length)
    if last_seen is not None:
        behind_last = tl.load(last_seen + token).to(tl.int32) + 1
    end = tl.cdiv(behind_last, CHUNK)
    step: tl.constexpr = NUM_KV * GROUP
    result = _merge_one(parts, stats, at, step, begin, end, sink, scale, ours, HEADS, HEAD_DIM, DIM)
    result_at = (token.to(tl.int64) * (NUM_KV * GROUP) + head)[:, None] * HEAD_DIM + dims[None, :]
    inside = ours[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(out + result_at, result.to(out.dtype.element_ty), mask=inside)


def merge_shared(
    parts: torch.Tensor,
    stats: torch.Tensor,
    out: torch.Tensor,
    work: WorkList,
    query_starts: torch.Tensor,
    lengths: torch.Tensor,
    num_kv: int,
    window: int | None = None,
    sinks: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
    chunked: bool = False,
    bidirectional: bool = False,
    last_seen: torch.Tensor | None = None,
) -> None:
    """Writes the tokens of shared rows. query_starts: [R + 1], lengths: [R], window, sinks, chunked,
    bidirectional, last_seen: as in paged_attention(). One program per token and KV head."""
    tokens, heads, head_dim = out.shape
    assert out.is_contiguous() and parts.is_contiguous() and stats.is_contiguous()
    _merge_shared_kernel[(tokens, num_kv)](
        parts,
        stats,
        out,
        work.token_rows,
        work.places,
        query_starts,
        lengths,
        last_seen,
        sinks,
        value_scales,
        window or 0,
        NUM_KV=num_kv,
        GROUP=heads // num_kv,
        HEADS=next_power_of_2(heads // num_kv),
        HEAD_DIM=head_dim,
        DIM=next_power_of_2(head_dim),
        CHUNK=CHUNK,
        HAS_WINDOW=window is not None,
        CHUNKED=window is not None and chunked,
        BIDIRECTIONAL=bidirectional,
        num_warps=4,
        enable_fp_fusion=False,
    )
