"""Copies of KV blocks on the device, and to and from a buffer."""

import pytest
import torch

from kernels.triton import blocks as module
from kernels.triton.blocks import copy_blocks, gather_blocks, scatter_blocks
from tests.kernels.references.attention import copy_blocks_reference
from tests.kernels.tolerances import random
from tests.kernels.triton.conftest import Where


@pytest.mark.parametrize("shape", [(4, 6, 2, 4, 24), (2, 6, 3, 16, 128)])
def test_copies(where: Where, shape: tuple[int, ...]):
    """A block that is the source of one copy and the target of another; a program's end within a block."""
    cache = random(*shape, dtype=where.dtype)
    moved = cache.clone().to(where.device)
    sources, targets = torch.tensor([1, 2, 3]), torch.tensor([2, 3, 0])
    copy_blocks_reference(cache, sources, targets)
    copy_blocks(moved, sources.to(where.device), targets.to(where.device))
    assert torch.equal(moved.cpu(), cache)


def test_blocks_go_out_and_come_back(where: Where):
    """A swap: into other blocks than they came from. None at all is no launch."""
    cache = random(4, 6, 2, 4, 24, dtype=where.dtype).to(where.device)
    out, back = (torch.tensor(ids, device=where.device) for ids in ([5, 1], [0, 3]))
    buffer = gather_blocks(cache, out)
    assert torch.equal(buffer, cache[:, out].transpose(0, 1))
    before = cache.clone()
    scatter_blocks(cache, buffer, back)
    before[:, back] = before[:, out]
    assert torch.equal(cache, before)
    none = torch.tensor([], dtype=torch.int64, device=where.device)
    copy_blocks(cache, none, none)
    assert torch.equal(cache, before)


def test_an_exchange(where: Where):
    """All sources are read before a target is written, or two blocks could not change places."""
    cache = random(4, 5, 2, 4, 24, dtype=where.dtype)
    expected = cache.clone()
    expected[:, [3, 0]] = cache[:, [0, 3]]
    moved = cache.to(where.device)
    ids = torch.tensor([0, 3], device=where.device)
    buffer = gather_blocks(moved, ids)
    scatter_blocks(moved, buffer, ids.flip(0))
    assert torch.equal(moved.cpu(), expected)


@pytest.mark.parametrize("width", [1, 15, 16, 17, 33])
def test_widths(where: Where, width: int, monkeypatch: pytest.MonkeyPatch):
    """Around the number of values of a program: of each plane all of a block, and nothing beside it."""
    monkeypatch.setattr(module, "BLOCK", 16)
    cache = random(3, 5, width, dtype=where.dtype)
    moved, ids = cache.clone().to(where.device), torch.tensor([4, 0, 2], device=where.device)
    buffer = gather_blocks(moved, ids)
    assert torch.equal(buffer.cpu(), cache[:, [4, 0, 2]].transpose(0, 1))
    filled = random(3, 3, width, dtype=where.dtype, seed=1)
    scatter_blocks(moved, filled.to(where.device), ids)
    expected = cache.clone()
    expected[:, [4, 0, 2]] = filled.transpose(0, 1)
    assert torch.equal(moved.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8, torch.int64])
def test_any_dtype(dtype: torch.dtype, device: torch.device):
    """Bits are moved, also those of what is no number."""
    bits = torch.arange(2 * 4 * 32, dtype=torch.uint8).view(2, 4, 32)
    moved, ids = bits.clone().to(device), torch.tensor([1, 3], device=device)
    copy_blocks(moved.view(dtype), ids, ids.flip(0))
    bits[:, [3, 1]] = bits[:, [1, 3]]
    assert torch.equal(moved.cpu(), bits)
