"""copy_blocks: exact copies, all of which are read before one is written."""

import pytest
import torch

from kernels.ops.attention.blocks import copy_blocks, copy_blocks_reference
from tests.kernels.tolerances import DTYPES, random

CASES = [
    ([1, 1, 2], [7, 2, 0]),  # one source twice, and a source that is a target
    ([0, 1], [1, 0]),  # an exchange
    ([3], [3]),  # a block onto itself
    ([0, 1, 2, 3], [4, 5, 6, 7]),
    ([], []),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("sources", "targets"), CASES)
@pytest.mark.parametrize("shape", [(3, 2, 4, 5), (1, 1, 1, 1), (2, 3, 16, 8)])
def test_equals_reference(
    shape: tuple[int, int, int, int], sources: list[int], targets: list[int], dtype: torch.dtype
):
    layers, *block = shape
    cache = random(2 * layers, 8, *block, dtype=dtype)
    expected, before = cache.clone(), cache.clone()
    ids = (torch.tensor(sources, dtype=torch.int64), torch.tensor(targets, dtype=torch.int64))
    copy_blocks(cache, *ids)
    copy_blocks_reference(expected, *ids)
    assert torch.equal(cache, expected)
    untouched = [block for block in range(8) if block not in targets]
    assert torch.equal(cache[:, untouched], before[:, untouched])
