"""store_kv and copy_blocks: exact copies."""

import pytest
import torch

from kernels.ops.attention.copy_blocks import copy_blocks, copy_blocks_reference
from kernels.ops.attention.store_kv import slot_rows, store_kv, store_kv_reference
from tests.kernels.tolerances import random

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "heads", "block_size", "head_dim"), [(1, 1, 1, 1), (11, 3, 4, 10)])
def test_store_kv(tokens: int, heads: int, block_size: int, head_dim: int, dtype: torch.dtype):
    """Strided keys and values, scattered slots; nothing else is touched."""
    fused = random(tokens, 4 * heads, head_dim, dtype=dtype)
    key, value = fused[:, heads : 2 * heads], fused[:, 3 * heads :]
    caches = [random(9, heads, block_size, head_dim, dtype=dtype, seed=s) for s in (1, 2)]
    expected = [cache.clone() for cache in caches]
    slots = torch.randperm(9 * block_size, generator=torch.Generator().manual_seed(3))[:tokens]
    store_kv(key, value, *caches, slot_rows(slots, heads, block_size))
    store_kv_reference(key, value, *expected, slots)
    assert torch.equal(caches[0], expected[0])
    assert torch.equal(caches[1], expected[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_copy_blocks(dtype: torch.dtype):
    """One source twice, and a source that is a target: all are read first."""
    cache = random(6, 8, 2, 4, 5, dtype=dtype)
    expected = cache.clone()
    sources, targets = torch.tensor([1, 1, 2]), torch.tensor([7, 2, 0])
    copy_blocks(cache, sources, targets)
    copy_blocks_reference(expected, sources, targets)
    assert torch.equal(cache, expected)
