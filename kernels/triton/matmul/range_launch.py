"""What every launch of a product does with its sizes: the grid, the constants of the kernel, and sums of
ranges that another kernel adds.

    launch = launch_of(out, depth, sizes)
    _kernel[launch.grid](..., launch.target, ..., **launch.constants)
    launch.add_ranges(bias)

See kernels.triton.matmul.ranges for the order in which a product sums.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.triton.matmul.ranges import LinearSizes, range_length
from kernels.triton.matmul.sum_ranges import sum_ranges


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
        kernels.triton.matmul.sum_ranges."""
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
