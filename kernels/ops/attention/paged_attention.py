"""Attention of this step's queries over the paged KV cache, prefill and decode in one call.

    out[t, h] = sum_j p[j] * V[j, h // G],   p = softmax_j(scale * q[t, h] . K[j, h // G]),   G = H / K

for the query at position p of its row, over the row's KV positions j <= p: with a window those with
p - window < j, with chunks those with j // window = p // window.

query, out:             [T, H, D]; the rows of the step one after the other
key_cache, value_cache: [B, K, S, D], of the queries' dtype or e4m3 (kernels.ops.attention.e4m3)
block_tables:           [R, N]; position j of a row is at offset j % S of its block j // S

Why the cache is [B, K, S, D] and not [B, S, K, D]: what one head needs of one block is a single
tile of S * D values, contiguous. A kernel streams it without stride, whatever K is, and the gather
below copies whole tiles straight into the order in which the product reads them.

Products and sums are float32 inside torch's attention. Bytes moved: each row's keys and values
once per group of G heads; this plain variant reads, writes and reads them again, since it gathers.
kernels.cpu.attention.block_attention is the compiled variant for bfloat16 and float32 on CPUs,
kernels.triton.attention.paged_attention the one for CUDA.

                       T: tokens of the step
    +--------------------------------+-------------+-----------+
    | decode rows, one token each    | prefill row | prefill … |
    +--------------------------------+-------------+-----------+
     groups: rows whose KV is padded  chunks of QUERY_CHUNK
     to one width, one call for all   queries, one call for each
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from kernels.ops.attention.e4m3 import index_bytes
from kernels.ops.attention.first_seen import first_seen
from kernels.ops.attention.one_thread import one_thread
from kernels.ops.attention.ragged import Integers, ranges

MIN_WIDTH = 128
"""KV tokens that a decode row is padded to at least: below it a call costs more than the padding
(16 us for one row of 128 tokens, nearly all of it the call; 2 KV heads of 32, one Zen 4 core)."""
GROUP_VALUES = 1 << 20
"""Values gathered per call for K, and again for V. 256 rows of 512 tokens (2 KV heads of 32,
float32) are 32 MiB, which malloc maps anew each time: 21 ms per gather, but 1.4 ms in such pieces."""
QUERY_CHUNK = 256
"""Prefill queries per call. A chunk attends no further than its own end, so that most of the upper
triangle is never computed: 512 queries take 2.7 ms in two chunks, 3.5 ms in one (as above)."""


@dataclass(frozen=True)
class DecodeGroup:
    """Rows with one query each, whose KV is gathered to one width L = N * S."""

    tokens: slice  # the group's R tokens
    tiles: torch.Tensor  # [R * K * N] int64: block * K + head
    stale: torch.Tensor  # [X] int64: rows of the gathered [R * K * L, D] that were never written
    mask: torch.Tensor  # [R, 1, 1, L] dtype of the query: 0 or -inf


@dataclass(frozen=True)
class PrefillChunk:
    """Consecutive queries of one row, with KV of length L, counted from the first gathered block."""

    tokens: slice  # the chunk's C tokens
    tiles: torch.Tensor  # [K * N] int64
    length: int  # L
    mask: torch.Tensor  # [C, L] dtype of the query: 0 or -inf


@dataclass(frozen=True)
class GatherPlan:
    """What all layers with the same window share in one step. Made once per step."""

    groups: tuple[DecodeGroup, ...]
    chunks: tuple[PrefillChunk, ...]
    each_alone: bool = False  # as in CacheShape


@dataclass(frozen=True)
class CacheShape:
    """The sizes of a cache that planning needs."""

    num_kv_heads: int  # K
    head_dim: int  # D
    block_size: int  # S
    pad_block: int  # a block of finite values, read for padding and masked
    dtype: torch.dtype
    device: torch.device
    each_alone: bool = False  # each query in a call of its own


def paged_attention_reference(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    starts: Sequence[int],
    counts: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    window: int | None,
    scale: float,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    chunked: bool = False,
) -> torch.Tensor:
    """The formula, query by query, in float32 or wider. [T, H, D] -> [T, H, D].

    soft_cap: scores become soft_cap * tanh(score / soft_cap). slopes: [H], ALiBi: slopes * (j - p) is added
    to them, on a GPU alone. sinks: [H], the score of one more key of each head, whose value is zero. window,
    chunked: see kernels.ops.attention.first_seen.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    groups = query.shape[1] // key_cache.shape[1]
    rows: list[torch.Tensor] = []
    for start, count, table in zip(starts, counts, block_tables, strict=True):
        blocks = torch.as_tensor(table, dtype=torch.int64, device=query.device)
        # [N, K, S, D] -> [K, N * S, D] -> [H, N * S, D]
        keys = key_cache[blocks].transpose(0, 1).flatten(1, 2).repeat_interleave(groups, 0).to(wide)
        values = value_cache[blocks].transpose(0, 1).flatten(1, 2).repeat_interleave(groups, 0).to(wide)
        for position in range(start, start + count):
            seen = slice(int(first_seen(np.array(position), window, chunked)), position + 1)
            one = query[len(rows)].to(wide)
            scores = torch.einsum("hd,hjd->hj", one, keys[:, seen]) * scale
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            if slopes is not None:
                distances = torch.arange(seen.start, seen.stop, device=query.device) - position
                scores = scores + slopes.to(wide)[:, None] * distances
            if sinks is not None:
                scores = torch.cat((scores, sinks.to(wide)[:, None]), -1)
            weights = scores.softmax(-1)[:, : seen.stop - seen.start]
            rows.append(torch.einsum("hj,hjd->hd", weights, values[:, seen]))
    return torch.stack(rows).to(query.dtype)


def plan_attention(
    starts: Integers,
    counts: Integers,
    block_tables: Integers,
    window: int | None,
    shape: CacheShape,
    chunked: bool = False,
) -> GatherPlan:
    """Plans one step for all layers with this window; see kernels.ops.attention.first_seen.

    starts, counts: [R] position of the first query of each row, and how many. block_tables: [R, N].
    Rows of one query that follow one another share a call where their padded lengths are equal: the
    padded length of a row depends on its own length only, and so does its result (bitwise with one
    thread; with more, torch may cut the products differently for another number of rows).

    Where each query is alone (CacheShape), the shape of its call depends on its position only, and one thread
    computes it: so the bits of its result depend on neither the batch nor the number of threads.
    """
    if shape.each_alone:
        owners, starts = ranges(starts, counts)
        counts, block_tables = np.ones_like(starts), block_tables[owners]
    ends = starts + counts
    first_blocks = first_seen(starts, window, chunked) // shape.block_size
    num_blocks = -(-ends // shape.block_size) - first_blocks
    widths = np.where(counts == 1, _padded_widths(num_blocks, shape.block_size), 0)
    groups, chunks = [], []
    token = row = 0
    for length in _runs(widths, shape):
        rows = slice(row, row + length)
        if widths[row]:
            tokens = slice(token, token + length)
            table, first = block_tables[rows], first_blocks[rows]
            width = int(widths[row])
            lowest = first_seen(starts[rows], window, chunked)
            groups.append(_decode_group(tokens, starts[rows], table, first, width, lowest, shape))
            token += length
        else:
            start, count = int(starts[row]), int(counts[row])
            for offset in range(0, count, QUERY_CHUNK):
                tokens = slice(token + offset, token + min(count, offset + QUERY_CHUNK))
                queries = np.arange(start + offset, start + offset + tokens.stop - tokens.start)
                lowest = first_seen(queries, window, chunked)
                chunks.append(_prefill_chunk(tokens, queries, block_tables[row], lowest, shape))
            token += count
        row += length
    return GatherPlan(tuple(groups), tuple(chunks), shape.each_alone)


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: GatherPlan,
    scale: float,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """[T, H, D] -> [T, H, D], contiguous. Zero for tokens that the plan leaves out: padding. soft_cap, sinks:
    see paged_attention_reference().

    On a CPU 16-bit values are widened to float32: torch multiplies them very slowly there.
    """
    with one_thread() if plan.each_alone else nullcontext():
        return _attend_all(query, key_cache, value_cache, plan, scale, soft_cap, sinks)


def _attend_all(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: GatherPlan,
    scale: float,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    widen = query.device.type == "cpu" and query.dtype.itemsize == 2
    num_heads, head_dim = query.shape[1:]
    num_kv_heads, block_size = key_cache.shape[1:3]
    per_kv = num_heads // num_kv_heads
    key_tiles = index_bytes(key_cache).view(-1, block_size * head_dim)
    value_tiles = index_bytes(value_cache).view(-1, block_size * head_dim)
    queries = query.view(-1, num_kv_heads, per_kv, head_dim)  # [T, K, G, D]
    out = torch.zeros(query.shape, dtype=query.dtype, device=query.device).view(queries.shape)
    if widen:
        queries = queries.float()
    by_head = None if sinks is None else sinks.to(queries.dtype).view(num_kv_heads, per_kv, 1)
    for group in plan.groups:
        size = group.mask.shape[0], num_kv_heads, group.mask.shape[3], head_dim
        keys = key_tiles.index_select(0, group.tiles).view(-1, head_dim)
        values = value_tiles.index_select(0, group.tiles).view(-1, head_dim)
        # The weights of these positions are 0, but what an earlier owner of the block left there
        # may be inf or NaN, and 0 * inf is NaN.
        keys.index_fill_(0, group.stale, 0)
        values.index_fill_(0, group.stale, 0)
        keys, values = (x.view(key_cache.dtype).to(queries.dtype) for x in (keys, values))
        # [R, K, G, D] x [R, K, L, D]: the heads that share a KV head stand where torch expects
        # the queries of one head.
        mask = group.mask.to(queries.dtype).expand(-1, 1, per_kv, -1)
        out[group.tokens] = _attend(
            queries[group.tokens], keys.view(size), values.view(size), mask, scale, soft_cap, by_head
        )
    for chunk in plan.chunks:
        size = num_kv_heads, 1, -1, head_dim
        keys = key_tiles.index_select(0, chunk.tiles).view(size)[:, :, : chunk.length]
        values = value_tiles.index_select(0, chunk.tiles).view(size)[:, :, : chunk.length]
        keys, values = (x.view(key_cache.dtype).to(queries.dtype) for x in (keys, values))
        # [K, G, C, D] x [K, G, L, D], the latter repeated by a stride of 0.
        result = _attend(
            queries[chunk.tokens].permute(1, 2, 0, 3),
            keys.expand(-1, per_kv, -1, -1),
            values.expand(-1, per_kv, -1, -1),
            chunk.mask.to(queries.dtype),
            scale,
            soft_cap,
            None if by_head is None else by_head[..., None],
        )
        out[chunk.tokens] = result.permute(2, 0, 1, 3)
    return out.view(query.shape)


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """[..., Q, D], [..., L, D], [..., L, D], a mask that is added to the scores, and sinks [..., Q or 1, 1]
    -> [..., Q, D]."""
    if soft_cap is None and sinks is None:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
    scores = query @ keys.transpose(-1, -2) * scale
    if soft_cap is not None:
        scores = torch.tanh(scores / soft_cap) * soft_cap
    scores = scores + mask
    if sinks is None:
        return scores.softmax(-1) @ values
    weights = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), -1).softmax(-1)
    return weights[..., :-1] @ values


def _padded_widths(num_blocks: Integers, block_size: int) -> Integers:
    """Returns the number of blocks that each row is padded to, a power of two times a minimum: less than half
    is padding."""
    least = max(1, MIN_WIDTH // block_size)
    doublings = np.ceil(np.log2(np.maximum(num_blocks / least, 1))).astype(np.int64)
    return np.asarray(least << doublings)


def _runs(widths: Integers, shape: CacheShape) -> list[int]:
    """Returns the lengths of the pieces to compute: consecutive rows of equal width, at most GROUP_VALUES
    values each. A prefill row (width 0) is its own piece."""
    edges = np.flatnonzero(np.diff(widths)) + 1
    lengths = []
    for begin, end in zip([0, *edges], [*edges, len(widths)], strict=True):
        tile_values = shape.num_kv_heads * shape.block_size * shape.head_dim
        shared = widths[begin] and not shape.each_alone
        most = max(1, GROUP_VALUES // (int(widths[begin]) * tile_values)) if shared else 1
        lengths += [min(most, end - at) for at in range(begin, end, most)]
    return lengths


def _decode_group(
    tokens: slice,
    positions: Integers,
    block_tables: Integers,
    first_blocks: Integers,
    width: int,
    lowest: Integers,
    shape: CacheShape,
) -> DecodeGroup:
    """positions, first_blocks, lowest: [R], the last of first_seen(); block_tables: [R, N]; width: blocks per
    row after padding."""
    size, heads = shape.block_size, np.arange(shape.num_kv_heads)
    ends = positions + 1 - first_blocks * size  # [R] counted from the first gathered block
    num_blocks = -(-ends // size)
    columns = np.arange(width)
    picked = np.minimum(first_blocks[:, None] + columns, block_tables.shape[1] - 1)
    blocks = np.take_along_axis(block_tables, picked, 1)
    blocks = np.where(columns < num_blocks[:, None], blocks, shape.pad_block)  # [R, width]
    tiles = blocks[:, None, :] * shape.num_kv_heads + heads[:, None]  # [R, K, width]

    stale_rows, stale_offsets = ranges(ends, num_blocks * size - ends)
    stale = (stale_rows[:, None] * shape.num_kv_heads + heads) * (width * size) + stale_offsets[:, None]

    offsets = np.arange(width * size)
    hidden = (offsets >= ends[:, None]) | (offsets < (lowest - first_blocks * size)[:, None])
    return DecodeGroup(
        tokens,
        torch.from_numpy(tiles.reshape(-1).astype(np.int64)).to(shape.device),
        torch.from_numpy(stale.reshape(-1)).to(shape.device),
        _mask(hidden, shape)[:, None, None],
    )


def _prefill_chunk(
    tokens: slice, positions: Integers, block_table: Integers, lowest: Integers, shape: CacheShape
) -> PrefillChunk:
    """positions, lowest: [C], of the chunk's queries and of first_seen(); block_table: [N]."""
    size = shape.block_size
    end = int(positions[-1]) + 1
    first_block = int(lowest[0]) // size
    blocks = block_table[first_block : -(-end // size)]
    tiles = blocks * shape.num_kv_heads + np.arange(shape.num_kv_heads)[:, None]  # [K, N]
    keys = np.arange(first_block * size, end)
    hidden = (keys > positions[:, None]) | (keys < lowest[:, None])
    return PrefillChunk(
        tokens,
        torch.from_numpy(tiles.reshape(-1).astype(np.int64)).to(shape.device),
        end - first_block * size,
        _mask(hidden, shape),
    )


def _mask(hidden: npt.NDArray[np.bool_], shape: CacheShape) -> torch.Tensor:
    """Returns the additive mask: -inf where hidden, 0 elsewhere."""
    mask = torch.zeros(hidden.shape, dtype=shape.dtype, device=shape.device)
    return mask.masked_fill_(torch.from_numpy(hidden).to(shape.device), float("-inf"))
