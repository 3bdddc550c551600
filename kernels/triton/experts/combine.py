"""kernels.ops.experts.combine on CUDA: the weighted sum of what the experts of each token have computed.

    out[t] = sum_j weights[t, j] * y[places[t, j]]  +  sigmoid(gate[t]) * shared[t]

y: [P, E], rows contiguous; weights: [T, k] float32; places: [T, k] integers; shared: [T, E] or None; gate:
[T] float32 or None for a factor of 1; out: [T, E], of y's dtype. Sums are float32, over j in ascending order,
and rounded once; the compiler fuses no product with a sum, so that they are those of kernels.ops.

Bytes moved: (k + 1) * E read and E written per token. One program per token and BLOCK values. Speed: not yet
measured on a GPU.
"""

import torch
import triton
import triton.language as tl

BLOCK = 1024
"""Values of a program: 8 per thread, a load of 16 bytes at two bytes a value."""


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
    weights: torch.Tensor,
    places: torch.Tensor,
    shared: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns [T, E]."""
    (tokens, top_k), width = weights.shape, y.shape[1]
    assert y.is_contiguous() and weights.is_contiguous() and places.is_contiguous()
    assert (shared is None or shared.is_contiguous()) and (gate is None or gate.is_contiguous())
    out = torch.empty((tokens, width), dtype=y.dtype, device=y.device)
    if tokens:
        grid = tokens, triton.cdiv(width, BLOCK)
        arguments = y, weights, places, shared, gate, out, width
        _combine_kernel[grid](*arguments, TOP_K=top_k, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=False)
    return out
