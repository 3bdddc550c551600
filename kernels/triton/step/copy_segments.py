"""Copies segments of one array of numbers to another: the changes of a plan to rows on the device.

    target[target_starts[i] + j] = source[source_starts[i] + j]      0 <= j < counts[i], for all i at once

source, target: int32, contiguous, any shape; they may be one array, if no piece reads what another writes.
source_starts, target_starts, counts: [X] int32. Pieces that overlap in the target must bring equal values.
Bytes moved: 8 per number and 12 per piece: nothing beside the launch. Speed: not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

BLOCK = 1024
"""Numbers copied at a time: a change of a block table has one, a prompt of 8,192 tokens takes 8
iterations."""


@triton.jit
def _copy_kernel(
    source,
    target,
    source_starts,  # [X]
    target_starts,  # [X]
    counts,  # [X]
    BLOCK: tl.constexpr,
):
    piece = tl.program_id(0)
    source += tl.load(source_starts + piece).to(tl.int64)
    target += tl.load(target_starts + piece).to(tl.int64)
    count = tl.load(counts + piece)
    for chunk in range(0, count, BLOCK):
        at = chunk + tl.arange(0, BLOCK)
        tl.store(target + at, tl.load(source + at, mask=at < count), mask=at < count)


def copy_segments(
    source: torch.Tensor,
    target: torch.Tensor,
    source_starts: torch.Tensor,
    target_starts: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """Writes the target in place. One program per segment."""
    assert source.is_contiguous() and target.is_contiguous() and source.dtype == target.dtype == torch.int32
    assert source_starts.shape == target_starts.shape == counts.shape
    if counts.shape[0]:
        _copy_kernel[(counts.shape[0],)](
            source, target, source_starts, target_starts, counts, BLOCK, num_warps=4
        )
