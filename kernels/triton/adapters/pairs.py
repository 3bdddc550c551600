"""Sorts the pairs of experts and tokens that have an adapter, by adapter and expert, on CUDA, and cuts them
into tiles for kernels.triton.adapters.adapt.

experts: [T, k] integers of 0 .. N - 1, all of a token different; of pair (t, j), places[t, j] says where its
products are. A group is the pairs of one adapter and one expert; with c pairs it has ceil(c / TILE) tiles.
How many there are is known on the device alone: the table has room for as many as there may be.

    count    grid (N, S)    a program counts the pairs of a group
    place    grid (N, S)    a program knows from the counts where its pairs and tiles begin, and writes them

S: the most adapters of a step. Nothing is added atomically: the order is the same in every run. Bytes moved:
each program reads 16 * k for each token of its adapter, from L2. Speed: not yet measured on a GPU.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.ops.layers.adapters import TILE, DeviceAdapters, StepAdapters
from kernels.triton.adapters.pack import ENTRY
from kernels.triton.experts.dispatch import ExpertOrder
from kernels.triton.experts.tile_sizes import most_tiles

BLOCK = 1024
"""Pairs, and groups, that a program looks at at a time."""
TILES = 64
"""Tiles that a program writes at a time."""


@dataclass(frozen=True)
class AdaptedOrder(ExpertOrder):
    """An ExpertOrder with the pairs that have an adapter, sorted by adapter and expert."""

    adapted_pairs: torch.Tensor  # [P] int64: where each is in the order
    adapted_tokens: torch.Tensor  # [P] int64: their tokens
    adapted_tiles: torch.Tensor
    """[Y, 3] int64: as DeviceAdapters.tiles, of pairs of one expert; addresses are those of its entry."""


@triton.jit
def _pairs_of(
    experts,  # [T, k]
    tokens,  # of the adapter
    pairs,
    start,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Returns some pairs of an adapter, t * k + j, their tokens, and their experts; -1: there is none."""
    at = start + tl.arange(0, BLOCK)
    inside = at < pairs
    token = tl.load(tokens + at // TOP_K, mask=inside, other=0)
    pair = token * TOP_K + at % TOP_K
    return pair, token, tl.load(experts + pair, mask=inside, other=-1).to(tl.int32)


@triton.jit
def _pair_count_kernel(
    experts,  # [T, k]
    tokens,  # [T]
    spans,  # [S, 3]
    counts,  # [S, N]
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    expert, span = tl.program_id(0), spans + 3 * tl.program_id(1)
    ours, pairs = tokens + tl.load(span + 1), tl.load(span + 2).to(tl.int32) * TOP_K
    total = tl.zeros([BLOCK], tl.int32)
    for start in range(0, pairs, BLOCK):
        _, _, chosen = _pairs_of(experts, ours, pairs, start, TOP_K, BLOCK)
        total += (chosen == expert).to(tl.int32)
    tl.store(counts + tl.program_id(1) * tl.num_programs(0) + expert, tl.sum(total, 0))


@triton.jit
def _pair_place_kernel(
    experts,  # [T, k]
    places,  # [T, k]
    tokens,  # [T]
    spans,  # [S, 3]
    counts,  # [S, N]
    adapted_pairs,  # [P]
    adapted_tokens,  # [P]
    tiles,  # [Y, 3]
    TOP_K: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    ENTRY_BYTES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    expert, span = tl.program_id(0), spans + 3 * tl.program_id(1)
    group = tl.program_id(1) * tl.num_programs(0) + expert
    before, tiles_before = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
    for start in range(0, group, BLOCK):
        at = start + tl.arange(0, BLOCK)
        others = tl.load(counts + at, mask=at < group, other=0)
        before += others
        tiles_before += (others + TILE - 1) // TILE
    first, first_tile = tl.sum(before, 0), tl.sum(tiles_before, 0)
    count = tl.load(counts + group)
    num_tiles = (count + TILE - 1) // TILE
    address = tl.load(span) + expert * ENTRY_BYTES
    for start in range(0, num_tiles, TILES):
        at = start + tl.arange(0, TILES)
        tile, inside = tiles + 3 * (first_tile + at), at < num_tiles
        tl.store(tile, tl.zeros([TILES], tl.int64) + address, mask=inside)
        tl.store(tile + 1, (first + at * TILE).to(tl.int64), mask=inside)
        tl.store(tile + 2, tl.minimum(count - at * TILE, TILE).to(tl.int64), mask=inside)
    ours, pairs = tokens + tl.load(span + 1), tl.load(span + 2).to(tl.int32) * TOP_K
    seen = first
    for start in range(0, pairs, BLOCK):
        pair, token, chosen = _pairs_of(experts, ours, pairs, start, TOP_K, BLOCK)
        is_ours = chosen == expert
        to = seen + tl.cumsum(is_ours.to(tl.int32), 0) - 1
        tl.store(adapted_pairs + to, tl.load(places + pair, mask=is_ours, other=0).to(tl.int64), mask=is_ours)
        tl.store(adapted_tokens + to, token, mask=is_ours)
        seen += tl.sum(is_ours.to(tl.int32), 0)


def with_adapters(
    order: ExpertOrder, experts: torch.Tensor, num_experts: int, adapters: StepAdapters
) -> AdaptedOrder:
    """Returns an order with its adapted pairs. experts: [T, k], contiguous. adapters: of the tokens."""
    assert isinstance(adapters, DeviceAdapters)
    assert experts.is_contiguous() and order.places.is_contiguous() and adapters.spans.is_contiguous()
    pairs, device, num_spans = experts.numel(), experts.device, len(adapters.spans)
    counts = torch.empty((num_spans, num_experts), dtype=torch.int32, device=device)
    places, tokens = (torch.empty(pairs, dtype=torch.int64, device=device) for _ in range(2))
    most = most_tiles(pairs, num_spans * num_experts, TILE)
    tiles = torch.zeros((most, 3), dtype=torch.int64, device=device)
    if pairs and num_spans:
        grid, of_step = (num_experts, num_spans), (adapters.tokens, adapters.spans, counts)
        top_k = experts.shape[1]
        _pair_count_kernel[grid](experts, *of_step, TOP_K=top_k, BLOCK=BLOCK, num_warps=4)
        _pair_place_kernel[grid](
            experts, order.places, *of_step, places, tokens, tiles,
            TOP_K=top_k, TILE=TILE, TILES=TILES, ENTRY_BYTES=8 * ENTRY, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return AdaptedOrder(**vars(order), adapted_pairs=places, adapted_tokens=tokens, adapted_tiles=tiles)
