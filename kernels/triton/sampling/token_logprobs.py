"""Log-probabilities and ranks of some tokens on CUDA, without log-probabilities of all.

    logprob(t) = x_t - m - log(sum_j exp(x_j - m)),  m = max_j x_j
    rank(t)    = 1 + #{ j : x_j > x_t } + #{ j < t : x_j = x_t }

as kernels.ops.sampling.logprobs. logits: [A, V] float32; tokens: [A, N] integers. The sum is float64, in the
order of kernels.triton.sampling.tile_stats, and the result is rounded once to float32. Ranks are counts:
tiles add theirs by atomic additions of integers, whose order changes nothing. A row with NaN or +inf, or
nothing above -inf, gives NaN. Bytes moved: 8 * A * V, the second half from L2 where a step's logits fit there
(60 MB of an H200: 98 rows of 152,000). Speed: not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

from kernels.triton.requirements import next_power_of_2
from kernels.triton.sampling.tile_stats import TILE, tile_stats


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
