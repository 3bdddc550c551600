"""What every launch of a product does with its sizes: the grid, the constants of the kernel, and sums of
ranges that another kernel adds.

    launch = launch_of(out, depth, sizes)
    _kernel[launch.grid](..., launch.target, ..., **launch.constants)
    launch.add_ranges(bias)

See kernels.triton.matmul.ranges for the order in which a product sums.

sum_ranges() adds what the ranges of a product gave, in their order; and what ranks have of one, as a tree.

    out[t, n] = parts[0, t, n] + parts[1, t, n] + ... + bias[n]         one after the other, float32
    out[t, n] = ((parts[0, t, n] + parts[1, t, n]) + ...) + bias[n]     as a tree

parts: [R, T, N] float32; bias: [N] or None; out: [T, N], rounded once to its dtype. Of products by expert
(kernels.triton.experts.grouped_linear) bias is [experts, N], and owners [T] int32 says whose each row is.
Bytes moved: 4 * R * T * N read, from L2; T * N written. One program per token and BLOCK features.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.triton.matmul.ranges import LinearSizes, SumOrder, ranges_of

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
    TREE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < features
    total = tl.zeros([BLOCK], tl.float32)
    one, two, four = total, total, total  # sums of so many parts that wait for the next ones
    for part in tl.static_range(RANGES):
        own = tl.load(parts + (part * tokens + token) * features + column, mask=inside, other=0.0)
        if TREE:
            total = own
            if part % 2 == 1:
                total = one + total
                if part % 4 == 3:
                    total = two + total
                    if part == 7:
                        total = four + total
                    four = total
                two = total
            one = total
        else:
            total += own
    if bias is not None:
        first = bias
        if owners is not None:
            first += tl.load(owners + token) * features
        total += tl.load(first + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * features + column, total.to(out.dtype.element_ty), mask=inside)


def sum_ranges(
    parts: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    owners: torch.Tensor | None = None,
    as_tree: bool = False,
) -> None:
    """Writes out [T, N]. as_tree: of 1, 2, 4 or 8 parts."""
    ranges, tokens, features = parts.shape
    assert not as_tree or ranges in (1, 2, 4, 8)
    assert parts.is_contiguous() and out.is_contiguous() and out.shape == (tokens, features)
    if tokens and features:
        _sum_kernel[(tokens, -(-features // BLOCK))](
            parts, bias, owners, out, tokens, features, RANGES=ranges, TREE=as_tree, BLOCK=BLOCK, num_warps=4
        )


@dataclass(frozen=True)
class RangeLaunch:
    """A launch that writes out [T, N], or sums of ranges where programs sum one each."""

    out: torch.Tensor  # [T, N], contiguous
    target: torch.Tensor  # what programs write: `out`, or [ranges, T, N] float32
    grid: tuple[int, int, int]  # tiles of rows, tiles of features, ranges
    depth: int  # values of K at a time, which kernels of weights in few bits do not choose
    leaves: int  # ranges that are added as a tree; 0: one after the other
    step: int  # from one range to the next
    constants: dict[str, int | bool]
    """IN, RANGE, FEATURES, TOKENS and SPLIT of the kernel, its warps and its stages."""

    def add_ranges(self, bias: torch.Tensor | None, owners: torch.Tensor | None = None) -> None:
        """Adds sums of ranges, where programs have left any, and the bias to them. owners: of
        sum_ranges()."""
        if self.target is not self.out:
            sum_ranges(self.target, bias, self.out, owners, self.leaves > 0)


def launch_of(
    out: torch.Tensor,
    depth: int,
    sizes: LinearSizes | Callable[[int], LinearSizes],
    tiles: int | None = None,
    order: SumOrder | None = None,
) -> RangeLaunch:
    """Returns the launch of a product. out: [T, N], what it is to write. depth: K. sizes: launch parameters,
    or what chooses them by the number of ranges. tiles: of rows; None: as many as T rows have. order: see
    ranges_of()."""
    rows, features = out.shape
    length, step = ranges_of(features, depth, order)
    ranges = -(-depth // step)
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
    leaves = 0 if order is None else order.leaves
    return RangeLaunch(out, target, grid, sizes.depth, leaves, step, constants)
