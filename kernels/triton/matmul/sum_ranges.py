"""Adds what the ranges of a product gave (kernels.triton.matmul.ranges), in their order.

    out[t, n] = parts[0, t, n] + parts[1, t, n] + ... + bias[n]         one after the other, float32

parts: [R, T, N] float32; bias: [N] or None; out: [T, N], rounded once to its dtype. Of products by expert
(kernels.triton.experts.grouped_linear) bias is [experts, N], and owners [T] int32 says whose each row is.
Bytes moved: 4 * R * T * N read, from L2; T * N written. One program per token and BLOCK features.
"""

import torch
import triton
import triton.language as tl

BLOCK = 1024


def sum_ranges_reference(parts: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Computes the formula in float64: [R, T, N] -> [T, N]."""
    total = parts.double().sum(0)
    return total if bias is None else total + bias.double()


@triton.jit(do_not_specialize=["tokens"])
def _sum_kernel(
    parts,  # [R, T, N]
    bias,  # [N], or [experts, N], or None
    owners,  # [T], or None
    out,  # [T, N]
    tokens,
    features,
    RANGES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < features
    total = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(RANGES):
        total += tl.load(parts + (part * tokens + token) * features + column, mask=inside, other=0.0)
    if bias is not None:
        first = bias
        if owners is not None:
            first += tl.load(owners + token) * features
        total += tl.load(first + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * features + column, total.to(out.dtype.element_ty), mask=inside)


def sum_ranges(
    parts: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, owners: torch.Tensor | None = None
) -> None:
    """Writes out [T, N]."""
    ranges, tokens, features = parts.shape
    assert parts.is_contiguous() and out.is_contiguous() and out.shape == (tokens, features)
    if tokens and features:
        _sum_kernel[(tokens, -(-features // BLOCK))](
            parts, bias, owners, out, tokens, features, RANGES=ranges, BLOCK=BLOCK, num_warps=4
        )
