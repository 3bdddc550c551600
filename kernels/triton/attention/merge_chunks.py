"""Merges the results of the chunks of a query's KV, each a softmax over its own part, one after the other.

    m' = max(m, m[c]),   l = l * 2 ** (m - m') + l[c] * 2 ** (m[c] - m'),   a likewise,   m = m'
    out = a / l                          c ascending; begins with the sink, or with m = -inf, l = a = 0

parts: [T', H, C, D] float32, the weighted sums a[c]; stats: [T', H, C, 2] float32, the largest score m[c] in
base 2 and the total weight l[c]. A query at position p has the chunks from that of the first position that it
sees to that of p; others are not read. out: [T, H, D], T >= T'; zero where there is none (a padding row).

A program that computes all chunks of its queries merges them by the same function (add_chunk) in the same
order: which kernel merges changes no bit. So neither may be compiled with products and sums fused.
Bytes moved: 4 * (D + 2) per chunk and head, read. One program per row and KV head.
"""

import torch
import triton
import triton.language as tl

from kernels.triton.attention.attention_sizes import CHUNK
from kernels.triton.requirements import next_power_of_2

LOG2E = tl.constexpr(1.4426950408889634)
"""Scores are in base 2."""


def merge_chunks_reference(parts: torch.Tensor, stats: torch.Tensor) -> torch.Tensor:
    """Computes the formula in float64, of all chunks: parts [T', H, C, D], stats [T', H, C, 2] ->
    [T', H, D]."""
    largest, total = stats.double().unbind(-1)
    weights = torch.where(total > 0, torch.exp2(largest - largest.amax(-1, keepdim=True)), 0.0)
    acc = torch.where(total[..., None] > 0, parts.double(), 0.0)
    summed, whole = (weights[..., None] * acc).sum(2), (weights * total).sum(2, keepdim=True)
    return torch.where(whole > 0, summed / whole, 0.0)


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


@triton.jit(do_not_specialize=["chunks", "window"])
def _merge_kernel(
    parts,  # [T', H, C, D]
    stats,  # [T', H, C, 2]
    out,  # [T, H, D]
    query_starts,  # [R + 1]
    lengths,  # [R]
    sinks,  # [H] float32 in base e, or None
    value_scales,  # [K] float32, or None
    chunks,
    window,
    NUM_KV: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
):
    row, kv_head = tl.program_id(0), tl.program_id(1)
    first_token, end = tl.load(query_starts + row), tl.load(query_starts + row + 1)
    context = tl.load(lengths + row) - (end - first_token)
    member = tl.arange(0, HEADS)
    dims = tl.arange(0, DIM)
    head = kv_head * GROUP + member
    ours = member < GROUP
    inside = ours[:, None] & (dims < HEAD_DIM)[None, :]
    scale = None
    if value_scales is not None:
        scale = tl.load(value_scales + kv_head)
    for index in range(0, end - first_token):
        token, position = first_token + index, context + index
        begin = 0
        if CHUNKED:
            begin = tl.maximum(position, 0) // window * window // CHUNK
        elif HAS_WINDOW:
            begin = tl.maximum(position - window + 1, 0) // CHUNK
        acc = tl.zeros([HEADS, DIM], tl.float32)
        largest = tl.full([HEADS], -float("inf"), tl.float32)
        total = tl.zeros([HEADS], tl.float32)
        if sinks is not None:
            largest = tl.load(sinks + head, mask=ours, other=0.0) * LOG2E
            total += 1.0
        at = (token.to(tl.int64) * (NUM_KV * GROUP) + head) * chunks
        for chunk in range(begin, tl.cdiv(position + 1, CHUNK)):
            part_largest = tl.load(stats + 2 * (at + chunk), mask=ours, other=0.0)
            part_total = tl.load(stats + 2 * (at + chunk) + 1, mask=ours, other=0.0)
            part_at = (at + chunk)[:, None] * HEAD_DIM + dims[None, :]
            part = tl.load(parts + part_at, mask=inside, other=0.0)
            acc, largest, total = add_chunk(acc, largest, total, part, part_largest, part_total)
        result = quotient(acc, total, scale)
        result_at = (token * (NUM_KV * GROUP) + head)[:, None] * HEAD_DIM + dims[None, :]
        tl.store(out + result_at, result.to(out.dtype.element_ty), mask=inside)


def merge_chunks(
    parts: torch.Tensor,
    stats: torch.Tensor,
    out: torch.Tensor,
    query_starts: torch.Tensor,
    lengths: torch.Tensor,
    shape: tuple[int, int],
    window: int | None = None,
    sinks: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
    chunked: bool = False,
) -> None:
    """Writes the tokens of the first rows. query_starts: [R + 1], lengths: [R], window, chunked, sinks: as in
    paged_attention(). shape: how many rows, and KV heads."""
    rows, num_kv = shape
    _, heads, chunks, head_dim = parts.shape
    assert out.is_contiguous() and parts.is_contiguous() and stats.is_contiguous()
    _merge_kernel[(rows, num_kv)](
        parts,
        stats,
        out,
        query_starts,
        lengths,
        sinks,
        value_scales,
        chunks,
        window or 0,
        NUM_KV=num_kv,
        GROUP=heads // num_kv,
        HEADS=next_power_of_2(heads // num_kv),
        HEAD_DIM=head_dim,
        DIM=next_power_of_2(head_dim),
        CHUNK=CHUNK,
        HAS_WINDOW=window is not None,
        CHUNKED=window is not None and chunked,
        num_warps=4,
        enable_fp_fusion=False,
    )
