"""swap_out and swap_in: exact copies, and nothing else is touched."""

import pytest
import torch

from kernels.ops.attention.blocks import swap_in, swap_in_reference, swap_out, swap_out_reference
from tests.kernels.tolerances import random


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
