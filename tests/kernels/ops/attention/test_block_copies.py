"""Exact copies of blocks, all of which are read before one is written; nothing else is touched."""

import pytest
import torch

from kernels.ops.attention.block_copies import copy_blocks, swap_in, swap_out
from tests.kernels.references.attention import copy_blocks_reference, swap_in_reference, swap_out_reference
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
def test_copies_equal_their_reference(
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 2, 4, 5)])
def test_out_and_in(shape: tuple[int, int, int, int], dtype: torch.dtype):
    """One block goes out twice: two sequences may share it."""
    layers, heads, block_size, head_dim = shape
    cache = random(2 * layers, 8, heads, block_size, head_dim, dtype=dtype)
    host = random(6, 2 * layers, heads, block_size, head_dim, dtype=dtype, seed=1)
    before, expected = cache.clone(), host.clone()
    swap_out(cache, host, [3, 7, 3], [5, 0, 2])
    swap_out_reference(before, expected, [3, 7, 3], [5, 0, 2])
    assert torch.equal(host, expected)
    assert torch.equal(cache, before)

    swap_in(cache, host, [0, 5, 2], [1, 6, 4])
    swap_in_reference(before, expected, [0, 5, 2], [1, 6, 4])
    assert torch.equal(cache, before)
    assert torch.equal(host, expected)
    assert torch.equal(cache[:, 1], cache[:, 7])
    assert torch.equal(cache[:, 6], cache[:, 3])


def test_nothing_to_do():
    cache, host = random(2, 2, 1, 1, 1, dtype=torch.float32), torch.empty(0, 2, 1, 1, 1)
    before = cache.clone()
    swap_out(cache, host, [], [])
    swap_in(cache, host, [], [])
    assert torch.equal(cache, before)
