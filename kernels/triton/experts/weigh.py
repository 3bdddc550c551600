"""kernels.ops.experts.weigh on CUDA: the inputs of each token's experts, multiplied by their weights.

    out[places[t, j]] = x[t] * weights[t, j]

x: [T, E], rows contiguous; weights: [T, k] float32; places: [T, k] integers; out: [T * k, E], of x's dtype.
Products are float32, rounded once. Bytes moved: E read, mostly from L2, and E written per pair. Speed: not
yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

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
