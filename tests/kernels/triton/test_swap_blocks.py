"""Swaps through a buffer on the device: exact copies, and nothing else is touched."""

import pytest
import torch

from kernels.triton import blocks as module
from kernels.triton.blocks import swap_in, swap_out
from tests.kernels.references.attention import swap_in_reference, swap_out_reference
from tests.kernels.tolerances import random
from tests.kernels.triton.conftest import Where


@pytest.mark.parametrize("blocks_in_buffer", [0, 2, 100])
def test_out_and_in(where: Where, monkeypatch: pytest.MonkeyPatch, blocks_in_buffer: int):
    """Runs of neighbouring host blocks, and single ones; one block goes out twice; a buffer that is smaller
    than a block, than all of them, and larger."""
    cache = random(6, 8, 2, 4, 24, dtype=where.dtype)
    host = random(7, 6, 2, 4, 24, dtype=where.dtype, seed=1)
    monkeypatch.setattr(module, "BUFFER_BYTES", blocks_in_buffer * host[0].nbytes)
    expected_cache, expected_host = cache.clone(), host.clone()
    on_device = cache.clone().to(where.device)
    beside = host.pin_memory() if where.device.type == "cuda" else host
    swap_out(on_device, beside, [3, 7, 3, 0, 1], [4, 5, 6, 1, 2])
    swap_out_reference(expected_cache, expected_host, [3, 7, 3, 0, 1], [4, 5, 6, 1, 2])
    swap_in(on_device, beside, [6, 4, 0], [1, 6, 4])
    swap_in_reference(expected_cache, expected_host, [6, 4, 0], [1, 6, 4])
    assert torch.equal(on_device.cpu(), expected_cache)
    assert torch.equal(beside, expected_host)


def test_8_bits(device: torch.device):
    """A cache of e4m3."""
    cache = random(2, 4, 2, 4, 24, dtype=torch.float32).to(torch.float8_e4m3fn)
    host = torch.zeros((3, 2, 2, 4, 24), dtype=torch.float8_e4m3fn, pin_memory=device.type == "cuda")
    moved = cache.clone().to(device)
    swap_out(moved, host, [2, 0], [0, 1])
    swap_in(moved, host, [0, 1], [3, 1])
    bits, before = moved.cpu().view(torch.uint8), cache.view(torch.uint8)
    assert torch.equal(bits[:, [3, 1]], before[:, [2, 0]])
    assert torch.equal(bits[:, [0, 2]], before[:, [0, 2]])


def test_nothing_to_do(device: torch.device):
    cache, host = random(2, 2, 1, 1, 8, dtype=torch.float32).to(device), torch.empty(0, 2, 1, 1, 8)
    before = cache.clone()
    swap_out(cache, host, [], [])
    swap_in(cache, host, [], [])
    assert torch.equal(cache, before)
