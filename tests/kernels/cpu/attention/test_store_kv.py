"""The order of a block in the compiled cache: what attention reads as pairs."""

import pytest
import torch

from kernels.cpu.attention.block_attention import BlockKernels, block_kernels
from kernels.ops.attention.store_kv import slot_rows
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels

BF16 = torch.bfloat16


def kernels_for(block_size: int, head_dim: int) -> BlockKernels:
    made = block_kernels(BF16, block_size, head_dim, 1)
    assert made is not None
    return made


def read(cache: torch.Tensor, heads: int, block_size: int, head_dim: int, is_key: bool) -> torch.Tensor:
    """A cache in the compiled order as [blocks, heads, slots, D]. The formula of the file, backwards."""
    halves = cache.view(torch.int16).flatten()
    if is_key:  # [groups of 16 rows, D / 2, 16 rows, 2]
        rows = halves.view(-1, head_dim // 2, 16, 2).permute(0, 2, 1, 3).reshape(-1, head_dim)
    else:  # [pairs of rows, D, 2]
        rows = halves.view(-1, head_dim, 2).transpose(1, 2).reshape(-1, head_dim)
    return rows.reshape(-1, heads, block_size, head_dim).view(BF16)


@pytest.mark.parametrize(
    ("tokens", "heads", "block_size", "head_dim"),
    [(1, 1, 16, 32), (16, 2, 16, 32), (33, 3, 16, 64), (48, 1, 48, 96), (7, 2, 32, 128)],
)
def test_every_value_is_where_it_belongs(tokens: int, heads: int, block_size: int, head_dim: int):
    """In scattered slots, from strided views; other slots keep what they had."""
    fused = random(tokens, 2 * heads, head_dim, dtype=BF16)
    key, value = fused[:, :heads], fused[:, heads:]
    blocks = -(-tokens // block_size) + 2
    caches = [torch.full((blocks, heads, block_size, head_dim), 7.0, dtype=BF16) for _ in range(2)]
    slots = torch.randperm(blocks * block_size, generator=torch.Generator().manual_seed(1))[:tokens]
    expected = [torch.full((blocks, heads, block_size, head_dim), 7.0, dtype=BF16) for _ in range(2)]
    for token, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, block_size)
        expected[0][block, :, offset], expected[1][block, :, offset] = key[token], value[token]
    rows = slot_rows(slots, heads, block_size)
    kernels_for(block_size, head_dim).store_kv(key, value, *caches, rows)
    for cache, exact, is_key in zip(caches, expected, (True, False), strict=True):
        assert torch.equal(read(cache, heads, block_size, head_dim, is_key), exact)


@pytest.mark.parametrize(("tokens", "heads", "block_size", "head_dim"), [(1, 1, 16, 8), (33, 3, 32, 20)])
def test_float32(tokens: int, heads: int, block_size: int, head_dim: int):
    """Keys by dimension, 16 positions side by side; values as they come."""
    key, value = (random(tokens, heads, head_dim, dtype=torch.float32, seed=seed) for seed in (0, 1))
    blocks = -(-tokens // block_size) + 2
    caches = [torch.full((blocks, heads, block_size, head_dim), 7.0) for _ in range(2)]
    slots = torch.randperm(blocks * block_size, generator=torch.Generator().manual_seed(1))[:tokens]
    kernels = block_kernels(torch.float32, block_size, head_dim, 1)
    assert kernels is not None
    kernels.store_kv(key, value, *caches, slot_rows(slots, heads, block_size))
    by_dimension = caches[0].view(blocks, heads, block_size // 16, head_dim, 16)
    caches[0] = by_dimension.transpose(-1, -2).reshape(caches[0].shape)
    for cache, expected in zip(caches, (key, value), strict=True):
        found = cache.transpose(1, 2).reshape(-1, heads, head_dim)
        assert torch.equal(found[slots], expected)
        assert (found == 7).all(-1).all(-1).sum() == blocks * block_size - tokens


def test_no_tokens():
    cache = torch.full((1, 1, 16, 32), 7.0, dtype=BF16)
    none = torch.empty(0, 1, 32, dtype=BF16)
    kernels_for(16, 32).store_kv(none, none, cache, cache, torch.empty(0, dtype=torch.int64))
    assert (cache == 7).all()


def test_bits_are_copied():
    """NaN with a payload, infinities, zeros of both signs, subnormals."""
    bits = torch.tensor([0x7FC1, 0x7F80, -0x0080, 0, -0x8000, 1, 0x3F80, 0x00FF] * 4, dtype=torch.int16)
    key = bits.view(BF16).view(1, 1, 32)
    caches = [torch.zeros(1, 1, 16, 32, dtype=BF16) for _ in range(2)]
    kernels_for(16, 32).store_kv(key, key, *caches, slot_rows(torch.tensor([5]), 1, 16))
    for cache, is_key in zip(caches, (True, False), strict=True):
        found = read(cache, 1, 16, 32, is_key)
        assert torch.equal(found[0, 0, 5].view(torch.int16), bits)


@pytest.mark.parametrize(("block_size", "head_dim"), [(8, 32), (24, 32), (16, 25), (16, 1024)])
def test_sizes_that_do_not_fit(block_size: int, head_dim: int):
    assert block_kernels(BF16, block_size, head_dim, 1) is None
