"""store_kv: exact copies into the slots of the cache."""

import pytest
import torch

from kernels.ops.attention.store_kv import slot_rows, store_kv
from tests.kernels.references.attention import store_kv_reference
from tests.kernels.tolerances import DTYPES, random


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "heads", "block_size", "head_dim"),
    [(1, 1, 1, 1), (11, 3, 4, 10), (36, 2, 4, 8), (5, 8, 16, 64), (1, 5, 3, 7)],
)
def test_equals_reference(tokens: int, heads: int, block_size: int, head_dim: int, dtype: torch.dtype):
    """Strided keys and values, scattered slots, all slots; nothing else is touched."""
    fused = random(tokens, 4 * heads, head_dim, dtype=dtype)
    key, value = fused[:, heads : 2 * heads], fused[:, 3 * heads :]
    caches = [random(9, heads, block_size, head_dim, dtype=dtype, seed=s) for s in (1, 2)]
    expected = [cache.clone() for cache in caches]
    slots = torch.randperm(9 * block_size, generator=torch.Generator().manual_seed(3))[:tokens]
    fused_before = fused.clone()
    store_kv(key[: len(slots)], value[: len(slots)], *caches, slot_rows(slots, heads, block_size))
    store_kv_reference(key, value, *expected, slots)
    assert torch.equal(caches[0], expected[0])
    assert torch.equal(caches[1], expected[1])
    assert torch.equal(fused, fused_before)


def test_rows_of_slots():
    """Slot 6 of blocks of 4 is slot 2 of block 1: head k lies 2 behind the start of tile 1 * K + k."""
    assert slot_rows(torch.tensor([6, 0]), 3, 4).tolist() == [14, 18, 22, 0, 4, 8]
    assert slot_rows(torch.empty(0, dtype=torch.int64), 3, 4).shape == (0,)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_tokens(dtype: torch.dtype):
    cache = random(2, 1, 4, 8, dtype=dtype)
    before, none = cache.clone(), torch.empty(0, 1, 8, dtype=dtype)
    store_kv(none, none, cache, cache, slot_rows(torch.empty(0, dtype=torch.int64), 1, 4))
    assert torch.equal(cache, before)


def test_every_bit_is_copied():
    """NaN with a payload, infinities, zeros of both signs, subnormals."""
    bits = torch.tensor([0x7FC1, 0x7F80, -0x0080, 0, -0x8000, 1, 0x3F80, 0x00FF], dtype=torch.int16)
    key = bits.view(torch.bfloat16).view(1, 1, 8)
    caches = [torch.zeros(1, 1, 2, 8, dtype=torch.bfloat16) for _ in range(2)]
    store_kv(key, key, *caches, slot_rows(torch.tensor([1]), 1, 2))
    for cache in caches:
        assert torch.equal(cache[0, 0, 1].view(torch.int16), bits) and not cache[0, 0, 0].any()
