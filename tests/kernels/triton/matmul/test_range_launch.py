"""What a launch of a product is told: grid, constants, where programs write; and sums that are left."""

import pytest
import torch

from kernels.triton.matmul.range_launch import launch_of
from kernels.triton.matmul.ranges import LinearSizes, range_length
from tests.kernels.tolerances import random

WHOLE = LinearSizes(features=64, tokens=32, depth=16, warps=4, stages=3, splits=False)
SPLIT = LinearSizes(features=64, tokens=32, depth=16, warps=8, stages=2, splits=True)
DEPTH, RANGES = 2100, 4
assert -(-DEPTH // range_length(65, DEPTH)) == RANGES


@pytest.mark.parametrize(
    ("tokens", "features", "tiles"), [(1, 1, (1, 1)), (32, 64, (1, 1)), (33, 65, (2, 2)), (96, 128, (3, 2))]
)
def test_tiles_cover_the_result(tokens: int, features: int, tiles: tuple[int, int]):
    out = torch.empty(tokens, features)
    launch = launch_of(out, DEPTH, WHOLE)
    assert launch.grid == (*tiles, 1) and launch.target is launch.out is out and launch.depth == 16
    assert launch.constants == {
        "IN": DEPTH,
        "RANGE": range_length(features, DEPTH),
        "FEATURES": 64,
        "TOKENS": 32,
        "SPLIT": False,
        "num_warps": 4,
        "num_stages": 3,
    }


def test_tiles_of_rows_may_be_known():
    """Those of experts are more than rows alone have."""
    assert launch_of(torch.empty(33, 64), 64, WHOLE, tiles=7).grid == (7, 1, 1)


def test_programs_of_one_range_each_write_their_sums():
    """In float32, whatever the result has."""
    out = torch.empty(33, 65, dtype=torch.bfloat16)
    launch = launch_of(out, DEPTH, SPLIT)
    assert launch.grid == (2, 2, RANGES) and launch.constants["SPLIT"] is True
    assert launch.target.shape == (RANGES, 33, 65) and launch.target.dtype == torch.float32
    assert launch.target.is_contiguous() and launch.out is out


def test_sizes_may_be_chosen_by_the_number_of_ranges():
    asked = []

    def choose(ranges: int) -> LinearSizes:
        asked.append(ranges)
        return SPLIT

    assert launch_of(torch.empty(1, 65), DEPTH, choose).grid == (1, 2, RANGES)
    assert launch_of(torch.empty(1, 65), 100, choose).grid == (1, 2, 1)
    assert asked == [RANGES, 1]


def test_sums_of_ranges_are_added_in_their_order(device: torch.device):
    """With the bias, of each row's owner where there are several; a result that is whole stays."""
    out = torch.full((3, 65), 7.0, device=device)
    launch_of(out, DEPTH, WHOLE).add_ranges(torch.ones(65, device=device))
    assert (out == 7).all()
    launch = launch_of(out, DEPTH, SPLIT)
    parts = random(RANGES, 3, 65, dtype=torch.float32)
    launch.target.copy_(parts)
    bias, owners = random(2, 65, dtype=torch.float32, seed=1), torch.tensor([1, 0, 1], dtype=torch.int32)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    launch.add_ranges(None)
    assert torch.equal(out.cpu(), total)
    launch.add_ranges(bias.to(device), owners.to(device))
    assert torch.equal(out.cpu(), total + bias[owners.long()])
