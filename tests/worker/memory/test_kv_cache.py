"""How large the KV cache gets, and what its memory is."""

import math

import pytest
import torch

from kernels.ops.attention.paged_attention import CacheShape
from pagewire.errors import StartupError
from worker.memory import kv_cache
from worker.memory.kv_cache import KVCache, available_memory, block_bytes, choose_num_blocks

MIB = 1 << 20


def test_as_many_as_the_rows_can_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kv_cache, "available_memory", lambda: 1000 * MIB)
    assert choose_num_blocks(0, 1024, max_num_seqs=3, max_model_len=33, block_size=16) == 9


def test_at_most_a_part_of_the_memory(monkeypatch: pytest.MonkeyPatch):
    """Half of it, and the dummy block is paid from the same."""
    monkeypatch.setattr(kv_cache, "available_memory", lambda: 100 * MIB)
    assert choose_num_blocks(0, MIB, max_num_seqs=100, max_model_len=1000, block_size=10) == 49
    assert choose_num_blocks(0, MIB, 100, 1000, 10, num_workers=2) == 24


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kv_cache, "available_memory", lambda: 3 * MIB)
    with pytest.raises(StartupError, match="a block takes 1024 KiB, but 3 MiB"):
        choose_num_blocks(0, MIB, 1, 16, 16)


def test_more_was_asked_for_than_there_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kv_cache, "available_memory", lambda: 100 * MIB)
    assert choose_num_blocks(99, MIB, 1, 16, 16) == 99
    with pytest.raises(StartupError, match="num_blocks = 100 needs 101 MiB, but 100 MiB"):
        choose_num_blocks(100, MIB, 1, 16, 16)


def test_a_control_group_may_allow_less(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kv_cache, "_read", lambda path: "MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    monkeypatch.setattr(kv_cache, "memory_left", lambda: math.inf)
    assert available_memory() == 2 * MIB
    monkeypatch.setattr(kv_cache, "memory_left", lambda: 1000)
    assert available_memory() == 1000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_layers_are_views_and_copies_reach_all(dtype: torch.dtype):
    shape = CacheShape(2, 6, 4, 5, dtype, torch.device("cpu"))
    cache = KVCache(3, 5, shape)
    assert cache.num_bytes == 6 * block_bytes(3, 2, 6, 4, dtype)
    assert not cache.tensor.any()
    for layer in cache.layers:
        layer.key[1] = 1
        layer.value[1] = 2
    cache.copy_blocks(torch.tensor([1]), torch.tensor([4]))
    assert all((layer.key[4] == 1).all() and (layer.value[4] == 2).all() for layer in cache.layers)
    assert not cache.tensor[:, :, 5].any()


def test_an_allocation_that_fails_is_told():
    shape = CacheShape(1 << 20, 1 << 20, 16, 1 << 20, torch.float32, torch.device("cpu"))
    with pytest.raises(StartupError, match="do not fit"):
        KVCache(1, 1 << 20, shape)
