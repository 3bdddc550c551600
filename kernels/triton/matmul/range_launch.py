"""What every launch of a product does with its sizes: the grid, the constants of the kernel, and sums of
ranges that another kernel adds.

    launch = launch_of(out, depth, sizes)
    _kernel[launch.grid](..., launch.target, ..., **launch.constants)
    launch.add_ranges(bias)

See kernels.triton.matmul.ranges for the order in which a product sums.

sum_ranges() adds what the ranges of a product gave, in their order.

    out[t, n] = parts[0, t, n] + parts[1, t, n] + ... + bias[n]         one after the other, float32

parts: [R, T, N] float32; bias: [N] or None; out: [T, N], rounded once to its dtype. Of products by expert
(kernels.triton.experts.grouped_linear) bias is [experts, N], and owners [T] int32 says whose each row is.
Bytes moved: 4 * R * T * N read, from L2; T * N written. One program per token and BLOCK features.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.triton.matmul.ranges import LinearSizes, range_length

BLOCK = 1024


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


@dataclass(frozen=True)
class RangeLaunch:
    """A launch that writes out [T, N], or sums of ranges where programs sum one each."""

    out: torch.Tensor  # [T, N], contiguous
    target: torch.Tensor  # what programs write: `out`, or [ranges, T, N] float32
    grid: tuple[int, int, int]  # tiles of rows, tiles of features, ranges
    depth: int  # values of K at a time, which kernels of weights in few bits do not choose
    constants: dict[str, int | bool]
    """IN, RANGE, FEATURES, TOKENS and SPLIT of the kernel, its warps and its stages."""

    def add_ranges(self, bias: torch.Tensor | None, owners: torch.Tensor | None = None) -> None:
        """Adds sums of ranges, where programs have left any, and the bias to them. owners: of
        sum_ranges()."""
        if self.target is not self.out:
            sum_ranges(self.target, bias, self.out, owners)


def launch_of(
    out: torch.Tensor,
    depth: int,
    sizes: LinearSizes | Callable[[int], LinearSizes],
    tiles: int | None = None,
) -> RangeLaunch:
    """Returns the launch of a product. out: [T, N], what it is to write. depth: K. sizes: launch parameters,
    or what chooses them by the number of ranges. tiles: of rows; None: as many as T rows have."""
    rows, features = out.shape
    length = range_length(features, depth)
    ranges = -(-depth // length)
    if not isinstance(sizes, LinearSizes):
        sizes = sizes(ranges)
    target = out
    if sizes.splits:
        target = torch.empty((ranges, rows, features), dtype=torch.float32, device=out.device)
    if tiles is None:
        tiles = -(-rows // sizes.tokens)
    grid = tiles, -(-features // sizes.features), ranges if sizes.splits else 1
    constants = {
        "IN": depth,
        "RANGE": length,
        "FEATURES": sizes.features,
        "TOKENS": sizes.tokens,
        "SPLIT": sizes.splits,
        "num_warps": sizes.warps,
        "num_stages": sizes.stages,
    }
    return RangeLaunch(out, target, grid, sizes.depth, constants)
