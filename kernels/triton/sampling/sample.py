"""One token per row on CUDA: the most probable, or a draw from all tokens by the inverse of their
distribution.

    T = 0:  argmax_j x_j, the lowest id among equals
    T > 0:  the first j with w_0 + ... + w_j > u * sum(w),   w_j = exp((x_j - max x) / T)
    -1      where the largest logit is not finite

u is the uniform number of (seed, index, position): kernels.triton.sampling.draws. Rows that filter (top-k,
top-p, min-p) are left to kernels.triton.sampling.filtered_sample.

The draw first finds the tile in which the sum passes u * sum(w), then the token in it, so that the vocabulary
is read once and one tile of it again. Weights are float32 (kernels.triton.sampling.draws). The order of the
sums: a float32 tree within each tile of 2,048 tokens (kernels.triton.sampling.tile_stats), a float64 tree
over the tiles, and within the tile of the draw a float64 scan; where the two sums of that tile differ in
their last bits, its last token closes the gap. kernels.ops.sampling.choose.inverse_cdf is float64 throughout
and adds from left to right. The limits between tokens differ by some 1e-7 of the whole, and the token differs
from the CPU's where u falls between.

Bytes moved: 4 * A * V, and A tiles. Speed: not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

from kernels.triton.requirements import next_power_of_2
from kernels.triton.sampling.draws import Draws, factor_of, uniform53, weights_of
from kernels.triton.sampling.tile_stats import TILE, TileStats, tile_stats


@triton.jit
def first_above(cumulative, weights, target, ids):
    """The id of the first positive weight whose cumulative one is above the target; if rounding leaves none,
    of the last positive weight. ids ascend."""
    first = tl.min(tl.where((weights > 0) & (cumulative > target), ids, 2147483647), 0)
    last = tl.max(tl.where(weights > 0, ids, -1), 0)
    return tl.minimum(first, last)


@triton.jit
def _choose_kernel(
    logits,  # [A, V]
    temperature,  # [A]
    seeds,  # [A]
    indexes,  # [A]
    positions,  # [A]
    largest,  # [A, I]
    best,  # [A, I]
    mass,  # [A, I]
    out,  # [A]
    stride,
    vocab_size,
    num_tiles,
    DRAW: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tiles = tl.arange(0, TILES)
    there = tiles < num_tiles
    tops = tl.load(largest + row * num_tiles + tiles, mask=there, other=-float("inf"))
    top = tl.max(tops, 0)
    token = tl.load(best + row * num_tiles + tl.argmax(tops, 0, tie_break_left=True))
    if (top == float("inf")) | (top == -float("inf")):
        tl.store(out + row, -1)
        return
    if DRAW:
        heat = tl.load(temperature + row)
        if heat > 0:
            masses = tl.load(mass + row * num_tiles + tiles, mask=there, other=0.0)
            masses *= weights_of(tl.where(there, tops, top), top, factor_of(heat)).to(tl.float64)
            seed, index = tl.load(seeds + row), tl.load(indexes + row)
            target = uniform53(seed, index, tl.load(positions + row)) * tl.sum(masses, 0)
            tile = first_above(tl.cumsum(masses, 0), masses, target, tiles)
            before = tl.sum(tl.where(tiles < tile, masses, 0.0), 0)
            ids = tile * TILE + tl.arange(0, TILE)
            x = tl.load(logits + row * stride + ids, mask=ids < vocab_size, other=-float("inf"))
            weights = weights_of(x, top, factor_of(heat)).to(tl.float64)
            token = first_above(before + tl.cumsum(weights, 0), weights, target, ids)
    tl.store(out + row, token.to(tl.int64))


def sample(logits: torch.Tensor, draws: Draws, stats: TileStats | None = None) -> torch.Tensor:
    """Returns tokens [A] int64 for logits [A, V] float32. stats: of these logits and temperatures; None:
    computed here."""
    stats = tile_stats(logits, draws.temperature) if stats is None else stats
    return _choose(logits, draws, stats)


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """Returns kernels.ops.sampling.choose.argmax on CUDA: logits [A, V] float32 -> [A] int64."""
    return _choose(logits, None, tile_stats(logits, None))


def _choose(logits: torch.Tensor, draws: Draws | None, stats: TileStats) -> torch.Tensor:
    """One program per row: chooses one of about a hundred tiles, then a token in it."""
    rows, tiles = stats.largest.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    of_draws = (
        (draws.temperature, draws.seeds, draws.indexes, draws.positions)
        if draws
        else (None, None, None, None)
    )
    if rows:
        _choose_kernel[(rows,)](
            logits,
            *of_draws,
            stats.largest,
            stats.best,
            stats.mass,
            out,
            logits.stride(0),
            logits.shape[1],
            tiles,
            DRAW=draws is not None,
            TILES=next_power_of_2(tiles),
            TILE=TILE,
            num_warps=4,
        )
    return out
