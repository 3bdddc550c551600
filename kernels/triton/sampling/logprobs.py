"""Log-probabilities on CUDA: those and the ranks of some tokens, without log-probabilities of all, and the
ids of the n highest logits.

    logprob(t) = x_t - m - log(sum_j exp(x_j - m)),  m = max_j x_j
    rank(t)    = 1 + #{ j : x_j > x_t } + #{ j < t : x_j = x_t }

as kernels.ops.sampling.logprobs. logits: [A, V] float32; tokens: [A, N] integers. The sum is float64, in the
order of kernels.triton.sampling.tile_stats, and the result is rounded once to float32. Ranks are counts:
tiles add theirs by atomic additions of integers, whose order changes nothing. A row with NaN or +inf, or
nothing above -inf, gives NaN. Bytes moved: 8 * A * V, the second half from L2 where a step's logits fit there
(60 MB of an H200: 98 rows of 152,000).

top_n() is kernels.ops.sampling.logprobs.ranking for n up to 128: the range of log-probability requests. As in
kernels.triton.sampling.filtered_sample, no row is sorted: the n-th largest of the maxima of groups says which
logits are candidates, a bisection over the bits of a float finds the n-th of them exactly, and the n that are
left are ranked by comparing each with each. The ids of a row with NaN are undefined, but valid. Bytes moved:
4 * A * V, and the tiles with candidates again. One program per row after the first pass. Speed: not yet
measured on a GPU.
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
from kernels.triton.sampling.tile_stats import TILE, tile_stats

MOST = 128
USUAL = 32
"""Requests for fewer tokens compute this many: kernels are compiled for this number and MOST, and not for
each number that a request may name."""


@triton.jit(do_not_specialize=["num_tokens"])
def _logprobs_kernel(
    logits,  # [A, V]
    tokens,  # [A, N]
    largest,  # [A, I]
    mass,  # [A, I]
    logprobs,  # [A, N]
    ranks,  # [A, N]
    stride,
    vocab_size,
    num_tokens,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
):
    row, tile, num_tiles = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    ids = tile * TILE + tl.arange(0, TILE)
    x = tl.load(logits + row * stride + ids, mask=ids < vocab_size, other=-float("inf"))
    for n in range(0, num_tokens):
        token = tl.load(tokens + row * num_tokens + n).to(tl.int32)
        score = tl.load(logits + row * stride + token)
        before = (x > score) | ((x == score) & (ids < token))
        number = tl.sum((before & (ids < vocab_size)).to(tl.int32), 0)
        if number > 0:
            tl.atomic_add(ranks + row * num_tokens + n, number, sem="relaxed")
    if tile == 0:
        tiles = tl.arange(0, TILES)
        there = tiles < num_tiles
        tops = tl.load(largest + row * num_tiles + tiles, mask=there, other=-float("inf"))
        top = tl.max(tops, 0).to(tl.float64)
        masses = tl.load(mass + row * num_tiles + tiles, mask=there, other=0.0)
        shares = tl.exp(tl.where(masses > 0, tops.to(tl.float64) - top, 0.0))
        normalizer = top + tl.log(tl.sum(masses * shares, 0))
        if (top == float("inf")) | (top == -float("inf")):
            normalizer = tl.full([], float("nan"), tl.float64)
        for n in range(0, num_tokens):
            token = tl.load(tokens + row * num_tokens + n).to(tl.int64)
            score = tl.load(logits + row * stride + token).to(tl.float64)
            tl.store(logprobs + row * num_tokens + n, (score - normalizer).to(tl.float32))


def token_logprobs(logits: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns log-probabilities [A, N] float32 and ranks [A, N] int32 of tokens [A, N] of the vocabulary."""
    rows, vocab_size = logits.shape
    assert logits.stride(1) == 1 and tokens.is_contiguous() and tokens.shape[0] == rows
    ones = torch.ones(rows, dtype=torch.float32, device=logits.device)
    stats = tile_stats(logits, ones)
    logprobs = torch.empty(tokens.shape, dtype=torch.float32, device=logits.device)
    ranks = torch.ones(tokens.shape, dtype=torch.int32, device=logits.device)
    tiles = stats.largest.shape[1]
    if tokens.numel():
        _logprobs_kernel[(rows, tiles)](
            logits,
            tokens,
            stats.largest,
            stats.mass,
            logprobs,
            ranks,
            logits.stride(0),
            vocab_size,
            tokens.shape[1],
            TILES=next_power_of_2(tiles),
            TILE=TILE,
            num_warps=4,
        )
    return logprobs, ranks


@triton.jit
def _select(scores, ids, count, n, picked_scores, picked_ids, HAS_IDS: tl.constexpr, WIDTH: tl.constexpr):
    """Writes the n highest of the candidates, in order of their ids."""
    key = kth_key(scores, count, n, WIDTH)
    greater = tl.zeros([], tl.int32)
    for start in range(0, count, WIDTH):
        at = start + tl.arange(0, WIDTH)
        keys = sort_key(tl.load(scores + at, mask=at < count, other=-float("inf")))
        greater += tl.sum(((keys > key) & (at < count)).to(tl.int32), 0)
    picked, equals = tl.zeros([], tl.int32), n - greater
    for start in range(0, count, WIDTH):
        at = start + tl.arange(0, WIDTH)
        x = tl.load(scores + at, mask=at < count, other=-float("inf"))
        keys = sort_key(x)
        equal = (keys == key) & (at < count)
        stays = ((keys > key) & (at < count)) | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= equals))
        place = picked + tl.cumsum(stays.to(tl.int32), 0) - 1
        token = at
        if HAS_IDS:
            token = tl.load(ids + at, mask=stays, other=0)
        tl.store(picked_scores + place, x, mask=stays & (place < n))
        tl.store(picked_ids + place, token, mask=stays & (place < n))
        picked += tl.sum(stays.to(tl.int32), 0)
        equals -= tl.sum(equal.to(tl.int32), 0)


@triton.jit(do_not_specialize=["n"])
def _top_kernel(
    logits,  # [A, V]
    largest,  # [A, I]
    groups,  # [A, num_groups]
    scores,  # [A, CANDIDATES]
    ids,  # [A, CANDIDATES]
    picked_scores,  # [A, n]
    picked_ids,  # [A, n], zeros
    out,  # [A, n], zeros
    n,
    stride,
    vocab_size,
    num_tiles,
    num_groups,
    N: tl.constexpr,
    GROUPS: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    one = tl.full([], 1.0, tl.float64)
    least = least_score(
        groups + row * num_groups, num_groups, one, vocab_size, n, one, one * 0, one * 0, one, GROUPS
    )
    row_logits, row_scores, row_ids = logits + row * stride, scores + row * CANDIDATES, ids + row * CANDIDATES
    count = write_candidates(
        row_logits,
        row_scores,
        row_ids,
        largest + row * num_tiles,
        vocab_size,
        num_tiles,
        least,
        TILE,
        CANDIDATES,
    )
    tl.debug_barrier()  # what one thread has written, others read; and below
    if count <= CANDIDATES:
        _select(row_scores, row_ids, count, n, picked_scores + row * n, picked_ids + row * n, True, WIDTH)
    else:
        _select(
            row_logits, row_ids, vocab_size, n, picked_scores + row * n, picked_ids + row * n, False, WIDTH
        )
    tl.debug_barrier()
    at = tl.arange(0, N)
    keys = sort_key(tl.load(picked_scores + row * n + at, mask=at < n, other=-float("inf")))
    before = (keys[None, :] > keys[:, None]) | (
        (keys[None, :] == keys[:, None]) & (at[None, :] < at[:, None])
    )
    rank = tl.sum((before & (at < n)[None, :]).to(tl.int32), 1)
    token = tl.load(picked_ids + row * n + at, mask=at < n, other=0)
    tl.store(out + row * n + rank, token.to(tl.int64), mask=at < n)


def top_n(logits: torch.Tensor, n: int) -> torch.Tensor:
    """Returns the ids [A, n] int64 of the n highest of logits [A, V] float32."""
    rows, vocab_size = logits.shape
    assert 0 < n <= min(vocab_size, MOST) and logits.stride(1) == 1
    stats = tile_stats(logits, None, groups=True)
    assert stats.groups is not None
    tiles, num_groups, device = stats.largest.shape[1], stats.groups.shape[1], logits.device
    scratch = torch.empty((2, rows, CANDIDATES), dtype=torch.float32, device=device)
    picked = torch.zeros((rows, n), dtype=torch.float32, device=device)
    out = torch.zeros((rows, n), dtype=torch.int64, device=device)
    if rows:
        _top_kernel[(rows,)](
            logits,
            stats.largest,
            stats.groups,
            scratch[0],
            scratch[1].view(torch.int32),
            picked,
            torch.zeros((rows, n), dtype=torch.int32, device=device),
            out,
            n,
            logits.stride(0),
            vocab_size,
            tiles,
            num_groups,
            N=next_power_of_2(n),
            GROUPS=next_power_of_2(num_groups),
            TILE=TILE,
            WIDTH=WIDTH,
            CANDIDATES=CANDIDATES,
            num_warps=16,  # 8 spill, to fit a third program
            maxnreg=96,  # without a bound, ptxas 13.1 spills to fit a second one
        )
    return out
