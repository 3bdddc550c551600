"""Finds the logits of a row that can be among its highest, without sorting. Device functions of
kernels.triton.sampling.filtered_sample and kernels.triton.sampling.logprobs, which describe the method; one
program per row.
"""

import triton
import triton.language as tl

CANDIDATES = 4096
"""32 KB of scratch per row. The 4,096 most probable tokens of a language model nearly always hold 0.99."""
WIDTH = 1024
"""Candidates per tile: 8 per thread."""


@triton.jit
def sort_key(x):
    """Maps x [N] float32 to keys [N] int64 in [0, 2^32) of the same order; both zeros have one key."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648


@triton.jit
def kth_key(scores, count, k, WIDTH: tl.constexpr):
    """Returns the key of the k-th largest of scores [count], k <= count."""
    key = tl.zeros([], tl.int64)
    bit = tl.full([], 2147483648, tl.int64)
    for _ in range(32):
        pivot = key + bit
        above = tl.zeros([], tl.int32)
        for start in range(0, count, WIDTH):
            at = start + tl.arange(0, WIDTH)
            x = tl.load(scores + at, mask=at < count, other=-float("inf"))
            above += tl.sum(((sort_key(x) >= pivot) & (at < count)).to(tl.int32), 0)
        key = tl.where(above >= k, pivot, key)
        bit = bit // 2
    return key


@triton.jit
def least_score(groups, num_groups, total, vocab_size, k, p, least_share, top, heat, GROUPS: tl.constexpr):
    """Returns a score below which no token is kept. A lower bound: it saves work and does not affect
    results."""
    least = tl.full([], -float("inf"), tl.float64)
    if (k > 0) & (k <= num_groups):
        at = tl.arange(0, GROUPS)
        keys = sort_key(tl.load(groups + at, mask=at < num_groups, other=-float("inf")))
        key = tl.zeros([], tl.int64)
        bit = tl.full([], 2147483648, tl.int64)
        for _ in range(32):
            pivot = key + bit
            above = tl.sum(((keys >= pivot) & (at < num_groups)).to(tl.int32), 0)
            key = tl.where(above >= k, pivot, key)
            bit = bit // 2
        bits = (key - 2147483648).to(tl.int32)
        bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        least = bits.to(tl.float32, bitcast=True).to(tl.float64)
    elif k == 0:
        share = tl.where(p < 1, (1 - p) * total / vocab_size, least_share)
        least = tl.where(share > 0, top + heat * tl.log(share * 0.999), least)  # log 0 is -inf
    return least


@triton.jit
def write_candidates(
    logits, scores, ids, tops, vocab_size, num_tiles, least, TILE: tl.constexpr, CANDIDATES: tl.constexpr
):
    """Writes logits not below `least` and their ids, in order of the ids, and returns their number. Those
    beyond CANDIDATES are counted and not written."""
    count = tl.zeros([], tl.int32)
    for tile in range(0, num_tiles):
        if tl.load(tops + tile).to(tl.float64) >= least:
            at = tile * TILE + tl.arange(0, TILE)
            x = tl.load(logits + at, mask=at < vocab_size, other=-float("inf"))
            stays = (x.to(tl.float64) >= least) & (at < vocab_size)
            place = count + tl.cumsum(stays.to(tl.int32), 0) - 1
            tl.store(scores + place, x, mask=stays & (place < CANDIDATES))
            tl.store(ids + place, at, mask=stays & (place < CANDIDATES))
            count += tl.sum(stays.to(tl.int32), 0)
    return count
