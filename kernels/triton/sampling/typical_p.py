"""kernels.ops.sampling.filters.typical_p on CUDA, without sorting: masks what the filters of a row remove,
typical-p among them.

Of a row with T > 0 and typical-p t < 1, weights w = exp((x - max x) / T), in float64 but for step 1:

    1. top-k, top-p and min-p, as in kernels.triton.sampling.filtered_sample
    2. with what they leave, d_i = | log w_i - sum(w log w) / sum(w) |, rounded to float32: the tokens by
       ascending d, ascending id among equals; the shortest beginning of that list whose weights reach
       t * sum(w) stays
    x <- -inf for all others

The row is then sampled as one without filters (kernels.triton.sampling.sample), so the three parameters of
step 1 are overwritten with their neutral values. Rows with T = 0, without
typical-p or with a largest logit that is not finite stay as they are.

Each distance is a float32 that is not negative, and its bits are in its order: 31 passes find the largest D
for which the weights with d < D are not enough; those with d = D are added by id. One program per row, and no
preselected candidates: the most probable token may be removed. Bytes moved: 4 * V some 40 times, with
top-k and top-p 75 and 110 times, from L2: a parameter that few use pays for itself. The sums are trees within
tiles of 2,048: see kernels.triton.sampling.sample for what that means. Speed: not yet measured on a GPU.

logits: [A, V] float32, rows contiguous; temperature, typical_p: [A] float32.
"""

import torch
import triton
import triton.language as tl

from kernels.triton.sampling.draws import Filters, factor_of
from kernels.triton.sampling.filtered_sample import kept, mass_of, thresholds

WIDTH = 2048
"""Logits read at a time: 8 per thread. As compiled for sm_90 nothing spills, and two programs fit on a
processor; with 1,024, of which four fit, 16 bytes per thread spill."""


@triton.jit
def _largest(x, count, WIDTH: tl.constexpr):
    """Returns the largest logit of a row; +inf where it has NaN."""
    top = tl.full([], -float("inf"), tl.float32)
    for start in range(0, count, WIDTH):
        at = start + tl.arange(0, WIDTH)
        scores = tl.load(x + at, mask=at < count, other=-float("inf"))
        top = tl.maximum(top, tl.max(tl.where(scores == scores, scores, float("inf")), 0))
    return top


@triton.jit
def _surprises(x, at, count, top, heat):
    """Returns the weights of some tokens and their logarithms, 0 where the weight is 0."""
    scores = tl.load(x + at, mask=at < count, other=-float("inf"))
    weights = tl.exp((scores.to(tl.float64) - top) / heat)
    return weights, tl.log(tl.where(weights > 0, weights, 1.0))


@triton.jit
def _distances(x, at, count, top, heat, mean):
    """Returns the weights of some tokens and the bits of their distances."""
    weights, logs = _surprises(x, at, count, top, heat)
    return weights, tl.abs(logs - mean).to(tl.float32).to(tl.int32, bitcast=True)


@triton.jit
def _mask_filtered(x, count, k, p, min_p, top, factor, WIDTH: tl.constexpr):
    """Masks by step 1, in place."""
    total, _ = mass_of(x, count, top, factor, tl.zeros([], tl.int64), WIDTH)
    key, equals, above, target = thresholds(x, count, k, p, top, factor, total, WIDTH)
    seen = tl.zeros([], tl.int32)
    for start in range(0, count, WIDTH):
        weights, seen = kept(x, start, count, top, factor, key, equals, seen, above, target, min_p, WIDTH)
        at = start + tl.arange(0, WIDTH)
        tl.store(x + at, -float("inf"), mask=(weights == 0) & (at < count))


@triton.jit
def _mask_atypical(x, count, share, top, heat, WIDTH: tl.constexpr):
    """Masks by step 2, in place."""
    whole, products = tl.zeros([], tl.float64), tl.zeros([], tl.float64)
    for start in range(0, count, WIDTH):
        weights, logs = _surprises(x, start + tl.arange(0, WIDTH), count, top, heat)
        whole += tl.sum(weights, 0)
        products += tl.sum(weights * logs, 0)
    mean, target = products / whole, share * whole
    limit, bit = tl.zeros([], tl.int32), tl.full([], 1 << 30, tl.int32)
    below = tl.zeros([], tl.float64)
    for _ in range(31):
        pivot = limit + bit
        mass = tl.zeros([], tl.float64)
        for start in range(0, count, WIDTH):
            weights, distances = _distances(x, start + tl.arange(0, WIDTH), count, top, heat, mean)
            mass += tl.sum(tl.where(distances < pivot, weights, 0.0), 0)
        below = tl.where(mass < target, mass, below)
        limit = tl.where(mass < target, pivot, limit)
        bit = bit // 2
    for start in range(0, count, WIDTH):
        at = start + tl.arange(0, WIDTH)
        weights, distances = _distances(x, at, count, top, heat, mean)
        equals = tl.where(distances == limit, weights, 0.0)
        earlier = below + tl.cumsum(equals, 0) - equals
        stays = (distances < limit) | ((distances == limit) & (earlier < target))
        tl.store(x + at, -float("inf"), mask=((weights == 0) | (stays == 0)) & (at < count))
        below += tl.sum(equals, 0)


@triton.jit
def _typical_kernel(
    logits,  # [A, V]
    temperature,  # [A]
    top_k,  # [A]
    top_p,  # [A]
    min_p,  # [A]
    typical_p,  # [A]
    stride,
    vocab_size,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    heat, share = tl.load(temperature + row).to(tl.float64), tl.load(typical_p + row).to(tl.float64)
    if (heat == 0) | (share >= 1):
        return
    x = logits + row * stride
    largest = _largest(x, vocab_size, WIDTH)
    if (largest == float("inf")) | (largest == -float("inf")):
        return
    top = largest.to(tl.float64)
    k, p, least = tl.load(top_k + row), tl.load(top_p + row).to(tl.float64), tl.load(min_p + row)
    if (k > 0) | (p < 1) | (least > 0):
        factor = factor_of(tl.load(temperature + row))
        _mask_filtered(x, vocab_size, k, p, least.to(tl.float64), largest, factor, WIDTH)
        tl.debug_barrier()  # threads read what others have written
    _mask_atypical(x, vocab_size, share, top, heat, WIDTH)
    tl.store(top_k + row, 0)
    tl.store(top_p + row, 1.0)
    tl.store(min_p + row, 0.0)


def typical_p(logits: torch.Tensor, temperature: torch.Tensor, filters: Filters, share: torch.Tensor) -> None:
    """Masks logits [A, V] and resets the filters, both in place. share: [A] typical-p."""
    rows, vocab_size = logits.shape
    assert logits.dtype == torch.float32 and logits.stride(1) == 1
    if rows:
        _typical_kernel[(rows,)](
            logits,
            temperature,
            filters.top_k,
            filters.top_p,
            filters.min_p,
            share,
            logits.stride(0),
            vocab_size,
            WIDTH=WIDTH,
            num_warps=8,
        )
