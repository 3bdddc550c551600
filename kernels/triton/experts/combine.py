"""The weights of experts on CUDA: weigh and combine of kernels.ops.experts.dispatch.

x: [T, E] and y: [P, E], rows contiguous; shared: [T, E] or None; gate: [T] float32 or None for a factor of 1.
The compiler fuses no product with a sum, so that they are those of kernels.ops.

Bytes moved: weigh reads E, mostly from L2, and writes E per pair; combine reads (k + 1) * E and writes E per
token. One program per pair or token and BLOCK values. Speed: not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

from kernels.ops.experts.dispatch import or_ones

BLOCK = 1024
"""Values of a program: 8 per thread, a load of 16 bytes at two bytes a value."""


@triton.jit
def _weigh_kernel(
    x,  # [T, E]
    weights,  # [T, k]
    places,  # [T, k]
    out,  # [T * k, E]
    width,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    pair = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + pair // TOP_K * width + column, mask=inside, other=0.0).to(tl.float32)
    value *= tl.load(weights + pair)
    place = tl.load(places + pair).to(tl.int64)
    tl.store(out + place * width + column, value.to(out.dtype.element_ty), mask=inside)


def weigh(x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Returns [T * k, E], sorted by expert."""
    assert x.is_contiguous() and weights.is_contiguous() and places.is_contiguous()
    pairs, width = weights.numel(), x.shape[1]
    out = torch.empty((pairs, width), dtype=x.dtype, device=x.device)
    if pairs:
        grid = pairs, triton.cdiv(width, BLOCK)
        _weigh_kernel[grid](x, weights, places, out, width, weights.shape[1], BLOCK, num_warps=4)
    return out


@triton.jit
def _combine_kernel(
    y,  # [P, E]
    weights,  # [T, k]
    places,  # [T, k]
    shared,  # [T, E], or None
    gate,  # [T], or None
    out,  # [T, E]
    width,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range(TOP_K):
        place = tl.load(places + token * TOP_K + j).to(tl.int64)
        value = tl.load(y + place * width + column, mask=inside, other=0.0).to(tl.float32)
        total += value * tl.load(weights + token * TOP_K + j)
    if shared is not None:
        added = tl.load(shared + token * width + column, mask=inside, other=0.0).to(tl.float32)
        if gate is not None:
            added *= 1 / (1 + tl.exp(-tl.load(gate + token)))
        total += added
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=inside)


def combine(
    y: torch.Tensor,
    weights: torch.Tensor | None,
    places: torch.Tensor,
    shared: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns [T, E]. weights: None stands for ones."""
    (tokens, top_k), width, weights = places.shape, y.shape[1], or_ones(weights, places)
    assert y.is_contiguous() and weights.is_contiguous() and places.is_contiguous()
    assert (shared is None or shared.is_contiguous()) and (gate is None or gate.is_contiguous())
    out = torch.empty((tokens, width), dtype=y.dtype, device=y.device)
    if tokens:
        grid = tokens, triton.cdiv(width, BLOCK)
        arguments = y, weights, places, shared, gate, out, width
        _combine_kernel[grid](*arguments, TOP_K=top_k, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=False)
    return out
