"""Attention over latents on CUDA: what layers of worker.layers.latent keep of a token is one vector, the key
of all heads, whose first R values are their value.

    out[t, h] = sum_j p[j] * c[j, :R],   p = softmax over j of scale * q[t, h] . c[j]

query: [T, H, R + P], tokens may be strided, of which the last P values are rotary; cache: [B, 1, S, R + P];
out: [T, H, R]. float32, float16, bfloat16; products and sums in float32. R up to 512, P up to 128.

A program has ROWS heads of one token: prompts and rows that decode are computed by the same programs, so that
a token has the same bits in both. A binary search finds the token's row. KV is cut into chunks as in
kernels.triton.attention.paged_attention, and chunks are merged in ascending order: by the program that has
all of them, or by kernels.triton.attention.merge_chunks where several programs share a token.

    grid (T, H / ROWS, splits)        program s has the chunks s, s + splits, ... of its token

Bytes moved: the latents of each token's context once for ROWS heads, from L2 but for the first; for a prompt
that is once for each of its tokens. Speed: not yet measured on a GPU.

Source: DeepSeek-V2 (arXiv 2405.04434, section 2.1) for the form.
"""

import torch
import triton
import triton.language as tl

from kernels.triton.attention.attention_sizes import CHUNK, choose_splits, num_chunks
from kernels.triton.attention.merge_chunks import LOG2E, add_chunk, merge_chunks, quotient
from kernels.triton.attention.paged_attention import PagedBatch
from kernels.triton.requirements import LARGEST_RANK, LARGEST_ROTARY, next_power_of_2

ROWS = 16
"""Heads of a program: what a matrix instruction takes at least. More would not fit into registers beside a
weighted sum of 512 values each, twice."""


@triton.jit
def _token_row(query_starts, num_rows, token):
    """Returns the row of a token: the last one that begins there or before."""
    low, high = 0, num_rows
    while low + 1 < high:
        middle = (low + high) // 2
        before = tl.load(query_starts + middle) <= token
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    return low


@triton.jit
def _attend(
    latent_query,  # [M, R]
    rotary_query,  # [M, P]
    cache,
    table,
    begin,
    end,
    seen,
    scale,
    ROWS: tl.constexpr,
    RANK: tl.constexpr,
    ROTARY: tl.constexpr,
    RANK_TILE: tl.constexpr,
    ROTARY_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Attends to tiles begin .. end - 1, and to positions below `seen`. Returns acc [M, R], largest [M] and
    total [M], float32: an online softmax, as in kernels.triton.attention.attention_kernel."""
    acc = tl.zeros([ROWS, RANK_TILE], tl.float32)
    largest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    WIDTH: tl.constexpr = RANK + ROTARY
    value, angle = tl.arange(0, RANK_TILE), tl.arange(0, ROTARY_TILE)
    for tile in range(begin, end):
        position = tile * TILE + tl.arange(0, TILE)
        there = position < seen
        block = tl.load(table + position // BLOCK_SIZE, mask=there, other=0).to(tl.int64)
        at = cache + (block * BLOCK_SIZE + position % BLOCK_SIZE)[:, None] * WIDTH
        inside = there[:, None] & (value < RANK)[None, :]  # slots that were never written may hold NaN
        c = tl.load(at + value[None, :], mask=inside, other=0.0)
        inside = there[:, None] & (angle < ROTARY)[None, :]
        k = tl.load(at + RANK + angle[None, :], mask=inside, other=0.0)
        scores = tl.dot(latent_query, tl.trans(c), input_precision="ieee")
        scores = tl.dot(rotary_query, tl.trans(k), scores, input_precision="ieee") * scale
        scores = tl.where(there[None, :], scores, -float("inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))  # each of these tiles has a position
        p = tl.exp2(scores - new_largest[:, None])
        shrink = tl.exp2(largest - new_largest)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(c.dtype), c, acc * shrink[:, None], input_precision="ieee")
        largest = new_largest
    return acc, largest, total


@triton.jit(do_not_specialize=["num_rows", "table_stride", "chunks"])
def _latent_kernel(
    query,  # [T, H, R + P]
    cache,  # [B, 1, S, R + P]
    out,  # [T, H, R]; SPLIT: [T, H, C, R] float32
    stats,  # SPLIT: [T, H, C, 2] float32, largest score and total weight
    query_starts,  # [N + 1]
    lengths,  # [N]
    block_tables,  # [N, blocks]
    num_rows,
    query_stride,
    table_stride,
    chunks,
    scale,
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    ROTARY: tl.constexpr,
    RANK_TILE: tl.constexpr,
    ROTARY_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
):
    token, split, splits = tl.program_id(0), tl.program_id(2), tl.num_programs(2)
    row = _token_row(query_starts, num_rows, token)
    behind = tl.load(query_starts + row + 1) - token  # tokens of the row from this one on
    length = tl.load(lengths + row)
    seen = tl.minimum(length - behind + 1, length)  # nothing of padding
    head = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    valid = head < HEADS
    value, angle = tl.arange(0, RANK_TILE), tl.arange(0, ROTARY_TILE)
    query_at = query + token.to(tl.int64) * query_stride + head[:, None] * (RANK + ROTARY)
    inside = valid[:, None] & (value < RANK)[None, :]
    latent_query = tl.load(query_at + value[None, :], mask=inside, other=0.0)
    rotary_inside = valid[:, None] & (angle < ROTARY)[None, :]
    rotary_query = tl.load(query_at + RANK + angle[None, :], mask=rotary_inside, other=0.0)
    table = block_tables + row.to(tl.int64) * table_stride
    acc = tl.zeros([ROWS, RANK_TILE], tl.float32)
    largest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    tiles: tl.constexpr = CHUNK // TILE
    at = token.to(tl.int64) * HEADS + head
    for chunk in range(split, tl.cdiv(seen, CHUNK), splits):
        end = tl.minimum(tl.cdiv(seen, TILE), chunk * tiles + tiles)
        part, part_largest, part_total = _attend(
            latent_query, rotary_query, cache, table, chunk * tiles, end, seen, scale,
            ROWS, RANK, ROTARY, RANK_TILE, ROTARY_TILE, BLOCK_SIZE, TILE,
        )  # fmt: skip
        if SPLIT:
            place = at * chunks + chunk
            tl.store(stats + 2 * place, part_largest, mask=valid)
            tl.store(stats + 2 * place + 1, part_total, mask=valid)
            tl.store(out + place[:, None] * RANK + value[None, :], part, mask=inside)
        else:
            acc, largest, total = add_chunk(acc, largest, total, part, part_largest, part_total)
    if not SPLIT:
        result = quotient(acc, total, None).to(out.dtype.element_ty)
        tl.store(out + at[:, None] * RANK + value[None, :], result, mask=inside)


@triton.jit
def _store_latent_kernel(
    latents,  # [T, W]
    slots,  # [T]
    cache,  # [B, 1, S, W]
    stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    value = tl.arange(0, BLOCK)
    latent = tl.load(latents + token * stride + value, mask=value < WIDTH, other=0.0)
    tl.store(cache + slot * WIDTH + value, latent, mask=value < WIDTH)


def store_latents(latents: torch.Tensor, slots: torch.Tensor, cache: torch.Tensor) -> None:
    """Stores latents [T, R + P], rows may be strided, into a cache [B, 1, S, R + P]. slots: [T] integers; -1
    stores nothing: padding."""
    tokens, width = latents.shape
    assert latents.stride(1) == 1 and cache.is_contiguous() and cache.shape[1::2] == (1, width)
    if tokens:
        block = next_power_of_2(width)
        _store_latent_kernel[(tokens,)](latents, slots, cache, latents.stride(0), width, block, num_warps=4)


def latent_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    rank: int,
    splits: int | None = None,
) -> torch.Tensor:
    """Returns [T, H, R], contiguous. splits: programs that share a token, which changes no bit; None: as many
    as fill the device."""
    tokens, heads, width = query.shape
    assert query.stride()[1:] == (width, 1) and cache.is_contiguous() and cache.shape[3] == width
    assert rank <= LARGEST_RANK and width - rank <= LARGEST_ROTARY and query.dtype == cache.dtype
    out = torch.empty((tokens, heads, rank), dtype=query.dtype, device=query.device)
    if not tokens:
        return out
    blocks, chunks, rows = -(-heads // ROWS), num_chunks(batch.max_length), batch.lengths.shape[0]
    if splits is None:
        splits = choose_splits(tokens * blocks, tokens, 4 * heads * (rank + 2), chunks, query.device)
    target, stats = out, None
    if splits > 1:
        shape = tokens, heads, chunks
        target = torch.empty((*shape, rank), dtype=torch.float32, device=query.device)
        stats = torch.empty((*shape, 2), dtype=torch.float32, device=query.device)
    _latent_kernel[(tokens, blocks, splits)](
        query,
        cache,
        target,
        stats,
        batch.query_starts,
        batch.lengths,
        batch.block_tables,
        rows,
        query.stride(0),
        batch.block_tables.stride(0),
        chunks,
        scale * LOG2E.value,
        HEADS=heads,
        RANK=rank,
        ROTARY=width - rank,
        RANK_TILE=max(16, next_power_of_2(rank)),
        ROTARY_TILE=max(16, next_power_of_2(width - rank)),
        BLOCK_SIZE=cache.shape[2],
        TILE=16 if query.dtype == torch.float32 else 32,
        CHUNK=CHUNK,
        ROWS=ROWS,
        SPLIT=splits > 1,
        num_warps=8,
        num_stages=2,
        maxnreg=224,  # without a bound, ptxas spills on 8.x to fit a second program
        enable_fp_fusion=False,
    )
    if stats is not None:
        merge_chunks(target, stats, out, batch.query_starts, batch.lengths)
    return out
