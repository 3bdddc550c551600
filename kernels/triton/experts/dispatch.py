"""Sorts the pairs of tokens and experts by expert on CUDA, as kernels.ops.experts.dispatch does, and cuts
each expert's pairs into tiles, which are the programs of kernels.triton.experts.grouped_linear.

experts: [T, k] integers of 0 .. N - 1. A pair is numbered t * k + j; pairs of one expert stay in that order.
With c[e] pairs of expert e, it has ceil(c[e] / M) tiles of M pairs. How many tiles there are is known on the
device alone: the table has room for as many as T * k pairs can have, and the rest are marked with -1. So
shapes and grids follow from T, nothing is read by the host, and a captured graph stays valid.

    count    grid (N,)    program e counts its pairs
    place    grid (N,)    program e knows from the counts where its pairs and tiles begin, and writes them

Nothing is added atomically: the order is the same in every run. Bytes moved: each program reads 2 * T * k
ids, from L2; 12 * T * k written. Speed: not yet measured on a GPU.
"""

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from kernels.triton.capabilities import capability_of
from kernels.triton.experts.tile_sizes import choose_tile, class_pairs, largest_tile, most_tiles
from kernels.triton.matmul.low_bit_weight import MOST_ROWS
from kernels.triton.requirements import next_power_of_2

BLOCK = 1024
"""Pairs that a program looks at at a time."""
TILES = 64
"""Tiles that a program writes at a time."""


@dataclass(frozen=True)
class ExpertOrder:
    """The order of the P = T * k pairs on the device. All are int32."""

    tokens: torch.Tensor  # [P] the token of each pair, sorted by expert
    owners: torch.Tensor  # [P] the expert of each pair, ascending
    places: torch.Tensor  # [T, k] where each pair is in that order
    starts: torch.Tensor  # [N + 1] where each expert's pairs begin, and where the last ones end
    tile_experts: torch.Tensor  # [X] whose pairs a tile has; -1: there is no such tile
    tile_firsts: torch.Tensor  # [X] its first pair, sorted by expert
    tile: int  # M
    class_tiles: int  # the most that a step of its class may have; see choose_grouped_sizes()

    def without_last(self, count: int) -> "ExpertOrder":
        """Returns the order in which the last expert, number `count`, is none: no tile has its pairs, of
        which nothing is computed. They keep their places."""
        is_last = self.tile_experts == count
        return replace(
            self,
            tile_experts=torch.where(is_last, -1, self.tile_experts),
            owners=self.owners.clamp(max=count - 1),
        )


@triton.jit(do_not_specialize=["pairs"])
def _expert_count_kernel(
    experts,  # [P]
    counts,  # [N]
    pairs,
    BLOCK: tl.constexpr,
):
    expert = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.int32)
    for start in range(0, pairs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += (tl.load(experts + at, mask=at < pairs, other=-1).to(tl.int32) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(total, 0))


@triton.jit(do_not_specialize=["pairs", "tile", "most"])
def _expert_place_kernel(
    experts,  # [P]
    counts,  # [N]
    tokens,  # [P]
    owners,  # [P]
    places,  # [P]
    starts,  # [N + 1]
    tile_experts,  # [X]
    tile_firsts,  # [X]
    pairs,
    tile,
    most,  # X
    COUNT: tl.constexpr,
    TOP_K: tl.constexpr,
    EXPERTS: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    expert = tl.program_id(0)
    every = tl.arange(0, EXPERTS)
    all_counts = tl.load(counts + every, mask=every < COUNT, other=0)
    all_tiles = (all_counts + tile - 1) // tile
    first = tl.sum(tl.where(every < expert, all_counts, 0), 0)
    first_tile = tl.sum(tl.where(every < expert, all_tiles, 0), 0)
    count = tl.sum(tl.where(every == expert, all_counts, 0), 0)
    num_tiles = tl.sum(tl.where(every == expert, all_tiles, 0), 0)
    tl.store(starts + expert, first)
    for start in range(0, num_tiles, TILES):
        at = start + tl.arange(0, TILES)
        tl.store(tile_experts + first_tile + at, tl.zeros([TILES], tl.int32) + expert, mask=at < num_tiles)
        tl.store(tile_firsts + first_tile + at, first + at * tile, mask=at < num_tiles)
    if expert == COUNT - 1:
        tl.store(starts + COUNT, first + count)
        for start in range(first_tile + num_tiles, most, TILES):
            at = start + tl.arange(0, TILES)
            tl.store(tile_experts + at, tl.full([TILES], -1, tl.int32), mask=at < most)
    seen = first
    for start in range(0, pairs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        ours = tl.load(experts + at, mask=at < pairs, other=-1).to(tl.int32) == expert
        place = seen + tl.cumsum(ours.to(tl.int32), 0) - 1
        tl.store(tokens + place, at // TOP_K, mask=ours)
        tl.store(owners + place, tl.zeros([BLOCK], tl.int32) + expert, mask=ours)
        tl.store(places + at, place, mask=ours)
        seen += tl.sum(ours.to(tl.int32), 0)


def sort_by_expert(
    experts: torch.Tensor, num_experts: int, dtype: torch.dtype, tile: int = 0, most_pairs: int = MOST_ROWS
) -> ExpertOrder:
    """experts: [T, k] integers, contiguous. dtype: of what is multiplied. tile: pairs of a tile; 0: as
    choose_tile() has it, up to most_pairs."""
    assert experts.is_contiguous()
    if not tile:
        most, on_device = largest_tile(dtype, capability_of(experts.device)), experts.device.type != "cpu"
        tile = choose_tile(len(experts), experts.shape[1], num_experts, min(most, most_pairs), on_device)
    pairs, most = experts.numel(), most_tiles(experts.numel(), num_experts, tile)
    sizes = (pairs, pairs, pairs, num_experts + 1, most, most, num_experts)
    parts = [torch.empty(size, dtype=torch.int32, device=experts.device) for size in sizes]
    tokens, owners, places, starts, tile_experts, tile_firsts, counts = parts
    if pairs:
        grid = (num_experts,)
        _expert_count_kernel[grid](experts, counts, pairs, BLOCK=BLOCK, num_warps=4)
        _expert_place_kernel[grid](
            experts,
            counts,
            tokens,
            owners,
            places,
            starts,
            tile_experts,
            tile_firsts,
            pairs,
            tile,
            most,
            COUNT=num_experts,
            TOP_K=experts.shape[1],
            EXPERTS=next_power_of_2(num_experts),
            TILES=TILES,
            BLOCK=BLOCK,
            num_warps=4,
        )
    class_tiles = most_tiles(class_pairs(len(experts), experts.shape[1]), num_experts, tile)
    columns = tokens, owners, places.view(experts.shape), starts, tile_experts, tile_firsts
    return ExpertOrder(*columns, tile, class_tiles)


@triton.jit(do_not_specialize=["tokens", "tile"])
def _head_order_kernel(
    rows,  # [P]
    owners,  # [P]
    starts,  # [H + 1]
    tile_experts,  # [X]
    tile_firsts,  # [X]
    tokens,
    tile,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    head, start = tl.program_id(0), tl.program_id(1) * BLOCK
    at = start + tl.arange(0, BLOCK)
    inside = at < tokens
    tl.store(rows + head * tokens + at, at * HEADS + head, mask=inside)
    tl.store(owners + head * tokens + at, tl.zeros([BLOCK], tl.int32) + head, mask=inside)
    tiles = (tokens + tile - 1) // tile
    here = (at < tiles) & inside
    tl.store(tile_experts + head * tiles + at, tl.zeros([BLOCK], tl.int32) + head, mask=here)
    tl.store(tile_firsts + head * tiles + at, head * tokens + at * tile, mask=here)
    if start == 0:
        tl.store(starts + head, head * tokens)
        tl.store(starts + HEADS, HEADS * tokens, mask=head == HEADS - 1)


def order_by_head(tokens: int, heads: int, dtype: torch.dtype, device: torch.device) -> ExpertOrder:
    """Returns the order of heads in place of experts: every token has all of them. Its `tokens` are the rows
    of [T * H, K] that pairs have; pairs stand as [H, T], and `places` has no numbers."""
    most, on_device = largest_tile(dtype, capability_of(device)), device.type != "cpu"
    tile = choose_tile(tokens, heads, heads, most, on_device)
    pairs, tiles = tokens * heads, heads * -(-tokens // tile)
    sizes = (pairs, pairs, heads + 1, tiles, tiles)
    parts = [torch.empty(size, dtype=torch.int32, device=device) for size in sizes]
    rows, owners, starts, tile_experts, tile_firsts = parts
    if pairs:
        grid = heads, triton.cdiv(tokens, BLOCK)
        _head_order_kernel[grid](*parts, tokens, tile, HEADS=heads, BLOCK=BLOCK, num_warps=4)
    class_tiles = most_tiles(class_pairs(tokens, heads), heads, tile)
    nowhere = torch.empty(0, dtype=torch.int32, device=device)
    return ExpertOrder(rows, owners, nowhere, starts, tile_experts, tile_firsts, tile, class_tiles)
