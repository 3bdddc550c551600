"""The plan of kernels.ops.attention.paged_attention: which rows share a call, and which blocks each call
gathers.

                   T: tokens of the step
+--------------------------------+-------------+-----------+
| decode rows, one token each    | prefill row | prefill … |
+--------------------------------+-------------+-----------+
 groups: rows whose KV is padded  chunks of QUERY_CHUNK
 to one width, one call for all   queries, one call for each
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

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


def first_seen(positions: Integers, window: int | None, chunked: bool) -> Integers:
    """Returns the first position that the query at each position sees.

    window: tokens that a query sees, itself included; None: all. chunked: it is the chunk of so many
    positions in which the query stands, from its beginning on (Llama 4).
    """
    if window is None:
        return np.zeros_like(positions)
    if chunked:
        return positions // window * window
    return np.maximum(positions - window + 1, 0)


def last_seen(positions: Integers, ends: Integers | int, window: int | None, bidirectional: bool) -> Integers:
    """Returns the last position that the query at each position sees: this one, or, if attention is
    bidirectional, the last one of its row or of its window.

    ends: of the row of each, the last position that has been stored, and one. window: as in first_seen();
    tokens that a query sees in each direction, itself included.
    """
    if not bidirectional:
        return positions
    lasts = np.zeros_like(positions) + ends - 1
    return lasts if window is None else np.minimum(positions + window - 1, lasts)


def plan_attention(
    starts: Integers,
    counts: Integers,
    block_tables: Integers,
    window: int | None,
    shape: CacheShape,
    chunked: bool = False,
    bidirectional: bool = False,
    lasts: Integers | None = None,
) -> GatherPlan:
    """Plans one step for all layers with this window; see first_seen() and last_seen(). Where layers are
    bidirectional, a row is computed in one step.

    starts, counts: [R] position of the first query of each row, and how many. block_tables: [R, N].
    lasts: [T] the last position that each query sees, in place of that of last_seen(): none beyond what its
    row computes in this step, and ascending within a row.
    Rows of one query that follow one another share a call where their padded lengths are equal: the
    padded length of a row depends on its own length only, and so does its result (bitwise with one
    thread; with more, torch may cut the products differently for another number of rows).

    Where each query is alone (CacheShape), the shape of its call depends on its position only, and one thread
    computes it: so the bits of its result depend on neither the batch nor the number of threads.
    """
    ends = starts + counts
    if shape.each_alone:
        owners, starts = ranges(starts, counts)
        counts, block_tables, ends = np.ones_like(starts), block_tables[owners], ends[owners]
    first_blocks = first_seen(starts, window, chunked) // shape.block_size
    if lasts is None:
        owners, positions = ranges(starts, counts)
        lasts = last_seen(positions, ends[owners], window, bidirectional)
    highest = lasts[np.cumsum(counts) - 1]
    num_blocks = highest // shape.block_size + 1 - first_blocks
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
            groups.append(_decode_group(tokens, highest[rows], table, first, width, lowest, shape))
            token += length
        else:
            start, count = int(starts[row]), int(counts[row])
            for offset in range(0, count, QUERY_CHUNK):
                tokens = slice(token + offset, token + min(count, offset + QUERY_CHUNK))
                queries = np.arange(start + offset, start + offset + tokens.stop - tokens.start)
                lowest = first_seen(queries, window, chunked)
                chunks.append(_prefill_chunk(tokens, lasts[tokens], block_tables[row], lowest, shape))
            token += count
        row += length
    return GatherPlan(tuple(groups), tuple(chunks), shape.each_alone)


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
    highest: Integers,
    block_tables: Integers,
    first_blocks: Integers,
    width: int,
    lowest: Integers,
    shape: CacheShape,
) -> DecodeGroup:
    """highest, first_blocks, lowest: [R], the first and the last of last_seen() and first_seen();
    block_tables: [R, N]; width: blocks per row after padding."""
    size, heads = shape.block_size, np.arange(shape.num_kv_heads)
    ends = highest + 1 - first_blocks * size  # [R] counted from the first gathered block
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
    tokens: slice, highest: Integers, block_table: Integers, lowest: Integers, shape: CacheShape
) -> PrefillChunk:
    """highest, lowest: [C], of last_seen() and first_seen() for the chunk's queries; block_table: [N]."""
    size = shape.block_size
    end = int(highest[-1]) + 1
    first_block = int(lowest[0]) // size
    blocks = block_table[first_block : -(-end // size)]
    tiles = blocks * shape.num_kv_heads + np.arange(shape.num_kv_heads)[:, None]  # [K, N]
    keys = np.arange(first_block * size, end)
    hidden = (keys > highest[:, None]) | (keys < lowest[:, None])
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
