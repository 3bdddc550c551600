"""A draw from the tokens that top-k, top-p and min-p keep, on CUDA, without sorting: for rows that filter.

The steps of docs/sampling.md, in its order: weights w = exp((x - max x) / T); the k largest x, the
lowest ids among equals; the shortest beginning of the tokens by descending x whose weights reach p of what
the k have together; of those the weights of at least min_p times the largest; the inverse of their sums at u.

Two thresholds decide it. Token j is kept if x_j is above a score s, or equal and one of the first e with
that score. Where n tokens are candidates, s is found by bisection over the bits of a float: 32 passes over
the candidates, counting for top-k and summing for top-p. This is cheap because candidates are few,
and they are found without sorting:

    top-k   the k-th largest of the maxima of disjoint groups (kernels.triton.sampling.tile_stats) is not
            above the k-th largest logit: logits below it are dropped
    top-p   weights below (1 - p) * sum(w) / V have together less than 1 - p: they are dropped
    min-p   alone: the weights that stay are the candidates

A pass over the row writes the candidates in order of their ids, skipping tiles whose largest logit is too
small. More than CANDIDATES of them (a flat distribution, a large k) are searched in the row itself.

Exact but for the rounding of weights to float32 (kernels.triton.sampling.draws) and the order of float64
sums: a tree within tiles of 1,024 candidates, tiles from left to right, where the CPU's weights are float64
and are added from left to right (by rank, for top-p). See kernels.triton.sampling.sample for what that means.
One program per row. Bytes moved: the row's tiles with candidates, at least once; of a flat row 33 times 4 * V
per filter, from L2. Speed: not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

from kernels.triton.requirements import next_power_of_2
from kernels.triton.sampling.candidates import (
    CANDIDATES,
    WIDTH,
    kth_key,
    least_score,
    sort_key,
    write_candidates,
)
from kernels.triton.sampling.draws import Draws, Filters, factor_of, uniform53, weights_of
from kernels.triton.sampling.tile_stats import TILE, TileStats


@triton.jit
def _weights(scores, ids, count, top, factor):
    """Returns scores and weights of the candidates ids, masked to count; weights are float32 values as
    float64. top, factor: see weights_of."""
    x = tl.load(scores + ids, mask=ids < count, other=-float("inf"))
    return x, weights_of(x, top, factor).to(tl.float64)


@triton.jit
def mass_of(scores, count, top, factor, least_key, WIDTH: tl.constexpr):
    """Returns the total weight of the candidates whose key is not below least_key, and their number."""
    mass, number = tl.zeros([], tl.float64), tl.zeros([], tl.int32)
    for start in range(0, count, WIDTH):
        at = start + tl.arange(0, WIDTH)
        x, weights = _weights(scores, at, count, top, factor)
        chosen = (sort_key(x) >= least_key) & (at < count)
        mass += tl.sum(tl.where(chosen, weights, 0.0), 0)
        number += tl.sum(chosen.to(tl.int32), 0)
    return mass, number


@triton.jit
def thresholds(scores, count, k, p, top, factor, total, WIDTH: tl.constexpr):
    """Returns the thresholds of top-k and top-p among candidates. total: the weight of the whole row.

    They are a key, how many candidates with this key may stay, the weight of all with a greater key, and the
    sum that the weights must reach: the arguments of kept().
    """
    key, equals = tl.zeros([], tl.int64), tl.full([], 2147483647, tl.int32)
    if (k > 0) & (k < count):
        key = kth_key(scores, count, k, WIDTH)
        _, greater = mass_of(scores, count, top, factor, key + 1, WIDTH)
        equals = k - greater
    above, target = tl.zeros([], tl.float64), tl.full([], float("inf"), tl.float64)
    if p < 1:
        whole = total
        if k > 0:  # the weight of the k largest
            greater_mass, greater = mass_of(scores, count, top, factor, key + 1, WIDTH)
            whole, number = mass_of(scores, count, top, factor, key, WIDTH)
            if number - greater > equals:  # not all of those with the key stay
                whole = greater_mass + (whole - greater_mass) / (number - greater) * equals
        target = p * whole
        k_key = key
        key = tl.zeros([], tl.int64)
        bit = tl.full([], 2147483648, tl.int64)
        for _ in range(32):
            pivot = key + bit
            enough = pivot <= k_key
            if not enough:
                mass, _ = mass_of(scores, count, top, factor, pivot, WIDTH)
                enough = mass >= target
            key = tl.where(enough, pivot, key)
            bit = bit // 2
        equals = tl.where(key > k_key, 2147483647, equals)
        above, _ = mass_of(scores, count, top, factor, key + 1, WIDTH)
    return key, equals, above, target


@triton.jit
def kept(
    scores, start, count, top, factor, key, equals, seen, above, target, least_weight, WIDTH: tl.constexpr
):
    """Returns the weights of a tile of candidates, 0 for those dropped, and how many had the key so far.

    seen: candidates with the key in earlier tiles; equals: how many of them may stay; above: the weight of
    all candidates with a greater key, to which equals are added until the target is reached.
    """
    at = start + tl.arange(0, WIDTH)
    x, weights = _weights(scores, at, count, top, factor)
    keys = sort_key(x)
    equal = (keys == key) & (at < count)
    earlier = seen + tl.cumsum(equal.to(tl.int32), 0) - equal.to(tl.int32)
    fits = equal & (earlier < equals) & (above + earlier.to(tl.float64) * weights < target)
    stays = ((keys > key) | fits) & (at < count) & (weights >= least_weight)
    return tl.where(stays, weights, 0.0), seen + tl.sum(equal.to(tl.int32), 0)


@triton.jit
def _draw(scores, ids, count, k, p, min_p, top, factor, total, u, HAS_IDS: tl.constexpr, WIDTH: tl.constexpr):
    """Draws from `count` candidates in order of their ids. total: the weight of the whole row."""
    key, equals, above, target = thresholds(scores, count, k, p, top, factor, total, WIDTH)
    whole, seen = tl.zeros([], tl.float64), tl.zeros([], tl.int32)
    for start in range(0, count, WIDTH):
        weights, seen = kept(
            scores, start, count, top, factor, key, equals, seen, above, target, min_p, WIDTH
        )
        whole += tl.sum(weights, 0)
    found, last = tl.full([], 2147483647, tl.int32), tl.full([], 0, tl.int32)
    before, seen = tl.zeros([], tl.float64), tl.zeros([], tl.int32)
    for start in range(0, count, WIDTH):
        if found == 2147483647:
            weights, seen = kept(
                scores, start, count, top, factor, key, equals, seen, above, target, min_p, WIDTH
            )
            at = start + tl.arange(0, WIDTH)
            passed = (weights > 0) & (before + tl.cumsum(weights, 0) > u * whole)
            found = tl.min(tl.where(passed, at, 2147483647), 0)
            last = tl.maximum(last, tl.max(tl.where(weights > 0, at, 0), 0))
            before += tl.sum(weights, 0)
    found = tl.where(found == 2147483647, last, found)
    if HAS_IDS:
        found = tl.load(ids + found)
    return found


@triton.jit
def _filtered_kernel(
    logits,  # [A, V]
    temperature,  # [A]
    seeds,  # [A]
    indexes,  # [A]
    positions,  # [A]
    top_k,  # [A]
    top_p,  # [A]
    min_p,  # [A]
    largest,  # [A, I]
    mass,  # [A, I]
    groups,  # [A, num_groups]
    scores,  # [A, CANDIDATES]
    ids,  # [A, CANDIDATES]
    out,  # [A]
    stride,
    vocab_size,
    num_tiles,
    num_groups,
    TILES: tl.constexpr,
    GROUPS: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    heat = tl.load(temperature + row)
    k, p, share = tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)
    if (heat == 0) | ((k == 0) & (p >= 1) & (share == 0)):
        return  # without a filter: kernels.triton.sampling.sample
    tiles = tl.arange(0, TILES)
    there = tiles < num_tiles
    tops = tl.load(largest + row * num_tiles + tiles, mask=there, other=-float("inf"))
    top = tl.max(tops, 0)
    if (top == float("inf")) | (top == -float("inf")):
        return  # -1, as kernels.triton.sampling.sample has written
    masses = tl.load(mass + row * num_tiles + tiles, mask=there, other=0.0)
    factor = factor_of(heat)
    total = tl.sum(masses * weights_of(tl.where(there, tops, top), top, factor).to(tl.float64), 0)
    p, share = p.to(tl.float64), share.to(tl.float64)
    heat, peak = heat.to(tl.float64), top.to(tl.float64)
    least = least_score(
        groups + row * num_groups, num_groups, total, vocab_size, k, p, share, peak, heat, GROUPS
    )
    row_logits = logits + row * stride
    row_scores, row_ids = scores + row * CANDIDATES, ids + row * CANDIDATES
    row_tops = largest + row * num_tiles
    count = write_candidates(
        row_logits, row_scores, row_ids, row_tops, vocab_size, num_tiles, least, TILE, CANDIDATES
    )
    tl.debug_barrier()  # what one thread has written, others read
    u = uniform53(tl.load(seeds + row), tl.load(indexes + row), tl.load(positions + row))
    if count <= CANDIDATES:
        token = _draw(row_scores, row_ids, count, k, p, share, top, factor, total, u, True, WIDTH)
    else:
        token = _draw(row_logits, row_ids, vocab_size, k, p, share, top, factor, total, u, False, WIDTH)
    tl.store(out + row, token.to(tl.int64))


def filtered_sample(
    logits: torch.Tensor, draws: Draws, filters: Filters, stats: TileStats, out: torch.Tensor
) -> None:
    """Overwrites the tokens of the rows that filter. out: [A] int64, as kernels.triton.sampling.sample has
    filled it; stats: with groups."""
    rows, vocab_size = logits.shape
    assert stats.groups is not None and logits.stride(1) == 1
    tiles, num_groups = stats.largest.shape[1], stats.groups.shape[1]
    scratch = torch.empty((2, rows, CANDIDATES), dtype=torch.float32, device=logits.device)
    if rows:
        _filtered_kernel[(rows,)](
            logits,
            draws.temperature,
            draws.seeds,
            draws.indexes,
            draws.positions,
            filters.top_k,
            filters.top_p,
            filters.min_p,
            stats.largest,
            stats.mass,
            stats.groups,
            scratch[0],
            scratch[1].view(torch.int32),
            out,
            logits.stride(0),
            vocab_size,
            tiles,
            num_groups,
            TILES=next_power_of_2(tiles),
            GROUPS=next_power_of_2(num_groups),
            TILE=TILE,
            WIDTH=WIDTH,
            CANDIDATES=CANDIDATES,
            num_warps=8,
        )
