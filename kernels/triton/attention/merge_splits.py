"""Merges the results of the splits of a query's KV, each a softmax over its own part.

    M = max_i m[i],   w[i] = 2 ** (m[i] - M),   out = sum_i w[i] * a[i] / sum_i w[i] * l[i]

parts: [T', H, I, D] float32, the weighted sums a; stats: [T', H, I, 2] float32, the largest score m in
base 2 and the total weight l. A split without visible keys has l = 0; its part is not read. out: [T, H, D],
T >= T'; zero where no split has visible keys (a padding row).
Bytes moved: 4 * T' * H * I * (D + 2) read. One program per token and head. Order: i ascending within
Triton's tree sum, which depends on I alone.
"""

import torch
import triton
import triton.language as tl

from kernels.triton.requirements import next_power_of_2


def merge_splits_reference(parts: torch.Tensor, stats: torch.Tensor) -> torch.Tensor:
    """Computes the formula in float64: parts [T', H, I, D], stats [T', H, I, 2] -> [T', H, D]."""
    largest, total = stats.double().unbind(-1)
    weights = torch.where(total > 0, torch.exp2(largest - largest.amax(-1, keepdim=True)), 0.0)
    acc = torch.where(total[..., None] > 0, parts.double(), 0.0)
    summed, whole = (weights[..., None] * acc).sum(2), (weights * total).sum(2, keepdim=True)
    return torch.where(whole > 0, summed / whole, 0.0)


@triton.jit
def _merge_kernel(
    parts,  # [T', H, I, D]
    stats,  # [T', H, I, 2]
    out,  # [T, H, D]
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64)
    splits = at * SPLITS + tl.arange(0, SPLITS)
    dims = tl.arange(0, DIM)
    largest = tl.load(stats + 2 * splits)
    total = tl.load(stats + 2 * splits + 1)
    whole = tl.max(largest, 0)
    weights = tl.where(total > 0, tl.exp2(largest - whole), 0.0)
    there = (total > 0)[:, None] & (dims < HEAD_DIM)[None, :]
    acc = tl.load(parts + splits[:, None] * HEAD_DIM + dims[None, :], mask=there, other=0.0)
    divisor = tl.sum(weights * total, 0)
    result = tl.sum(weights[:, None] * acc, 0) / tl.where(divisor > 0, divisor, 1.0)
    tl.store(out + at * HEAD_DIM + dims, result.to(out.dtype.element_ty), mask=dims < HEAD_DIM)


def merge_splits(parts: torch.Tensor, stats: torch.Tensor, out: torch.Tensor) -> None:
    """Writes the first T' tokens of out. I is a power of two, up to 64: at most 64 values per thread."""
    tokens, heads, splits, head_dim = parts.shape
    assert out.is_contiguous() and parts.is_contiguous() and splits == next_power_of_2(splits)
    _merge_kernel[(tokens * heads,)](
        parts,
        stats,
        out,
        HEAD_DIM=head_dim,
        DIM=next_power_of_2(head_dim),
        SPLITS=splits,
        num_warps=8 if splits * head_dim > 4096 else 4,
    )
