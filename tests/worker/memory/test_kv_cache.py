"""How large the KV cache gets, and what its memory is."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from kernels.attention.kv_cache_spec import AttentionSpec, CacheLayout, Plane
from pagewire.errors import StartupError
from worker.memory import kv_cache
from worker.memory.kv_cache import KVCache, block_bytes, choose_num_blocks
from worker.memory.swap_space import SwapSpace
from worker.step.plan_reader import Swaps

CPU = torch.device("cpu")
MIB = 1 << 20


def test_as_many_as_the_rows_can_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kv_cache, "available_memory", lambda: 1000 * MIB)
    assert choose_num_blocks(0, 1024, max_num_seqs=3, max_model_len=33, block_size=16) == 9


def test_as_many_as_usual_sequences_need(monkeypatch: pytest.MonkeyPatch):
    """A long context, or many rows, do not claim half of the machine."""
    monkeypatch.setattr(kv_cache, "available_memory", lambda: 100_000 * MIB)
    assert choose_num_blocks(0, MIB, max_num_seqs=256, max_model_len=8192, block_size=16) == 16 * 32
    assert choose_num_blocks(0, MIB, 256, 8192, 16, num_threads=4) == 64 * 32
    assert choose_num_blocks(0, MIB, 256, 131_072, 16) == 8192  # one sequence of full length
    assert choose_num_blocks(0, MIB, 256, 256, 16) == 256  # SMALL_BYTES, more than 16 sequences of 256
    assert choose_num_blocks(0, MIB, 4, 256, 16) == 64  # all that four rows can use


def test_a_model_of_135_million_takes_less_than_a_gigabyte(monkeypatch: pytest.MonkeyPatch):
    """SmolLM2's shape on two threads, of 24 GiB: beside the cache there are 270 MB of weights."""
    monkeypatch.setattr(kv_cache, "available_memory", lambda: 24 << 30)
    num_bytes = block_bytes([AttentionSpec(3, 64)] * 30, 16, torch.bfloat16)
    num_blocks = choose_num_blocks(0, num_bytes, 256, 8192, 16, num_threads=2)
    assert num_blocks * num_bytes == 360 * MIB


def test_as_many_bytes_as_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kv_cache, "available_memory", lambda: 100 * MIB)
    assert choose_num_blocks(0, MIB, 1, 16, 16, requested_bytes=64 * MIB + 5) == 63
    assert choose_num_blocks(0, MIB, 1, 16, 16, requested_bytes=1) == 1
    with pytest.raises(StartupError, match="--kv-cache-memory: 100 blocks need 101 MiB, but 100 MiB"):
        choose_num_blocks(0, MIB, 1, 16, 16, requested_bytes=101 * MIB)


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
    with pytest.raises(StartupError, match="--num-blocks: 100 blocks need 101 MiB, but 100 MiB"):
        choose_num_blocks(100, MIB, 1, 16, 16)


def test_a_cache_waits_for_the_memory_of_its_predecessor(monkeypatch: pytest.MonkeyPatch):
    """Otherwise a worker that takes over would have fewer blocks, or find no room and end the service."""
    seen = iter([100 * MIB, 500 * MIB, 900 * MIB, 901 * MIB, 2000 * MIB])
    monkeypatch.setattr(kv_cache, "available_memory", lambda: next(seen))
    kv_cache.await_freed_memory()
    assert next(seen) == 2000 * MIB


def test_memory_that_something_else_takes(monkeypatch: pytest.MonkeyPatch):
    """It is not there for blocks, whether they are asked for or chosen."""
    monkeypatch.setattr(kv_cache, "available_memory", lambda: 100 * MIB)
    assert choose_num_blocks(0, MIB, 100, 1000, 10, reserved=40 * MIB) == 29
    assert choose_num_blocks(59, MIB, 1, 16, 16, reserved=40 * MIB) == 59
    with pytest.raises(StartupError, match="need 61 MiB, but 60 MiB"):
        choose_num_blocks(60, MIB, 1, 16, 16, reserved=40 * MIB)


@pytest.mark.parametrize(("available", "blocks"), [(4 * MIB, 1), (4 * MIB - 2, None)])
def test_the_least_memory(available: int, blocks: int | None, monkeypatch: pytest.MonkeyPatch):
    """That of one block and of the dummy block, in half of what there is."""
    monkeypatch.setattr(kv_cache, "available_memory", lambda: available)
    if blocks is not None:
        assert choose_num_blocks(0, MIB, 9, 100, 16) == blocks
        return
    with pytest.raises(StartupError, match="a block takes 1024 KiB"):
        choose_num_blocks(0, MIB, 9, 100, 16)


def test_looks_at_freed_memory_are_apart_and_end(monkeypatch: pytest.MonkeyPatch):
    """Where memory comes back for ever, as from many processes, the cache does not wait any longer."""
    slept: list[float] = []
    monkeypatch.setattr(kv_cache.time, "sleep", slept.append)
    monkeypatch.setattr(kv_cache, "available_memory", lambda: len(slept) << 30)
    kv_cache.await_freed_memory()
    assert len(slept) == 500 and sum(slept) == pytest.approx(5)
    slept.clear()
    monkeypatch.setattr(kv_cache, "available_memory", lambda: 0)
    kv_cache.await_freed_memory()
    assert len(slept) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_layers_are_views_and_copies_reach_all(dtype: torch.dtype):
    specs = [AttentionSpec(2, 6), AttentionSpec(2, 6, window=3), AttentionSpec(2, 6)]
    cache = KVCache(specs, CacheLayout(4, 5, dtype, CPU))
    assert cache.num_bytes == 6 * block_bytes(specs, 4, dtype) == 6 * 3 * 2 * 48 * dtype.itemsize
    (pool,) = cache.pools
    assert pool.shape == (6, 6, 2, 4, 6) and not pool.any()
    for key, value in cache.layers:
        key[1] = 1
        value[1] = 2
    cache.copy_blocks(torch.tensor([1]), torch.tensor([4]))
    assert all((key[4] == 1).all() and (value[4] == 2).all() for key, value in cache.layers)
    assert not pool[:, 5].any()


@dataclass(frozen=True)
class LatentSpec(AttentionSpec):
    """A kind of layer with one plane, and with a second one of another type."""

    def planes(self, block_size: int, dtype: torch.dtype) -> tuple[Plane, ...]:
        return Plane((block_size, 3), dtype), Plane((block_size,), torch.uint8)


def test_kinds_of_layers_that_keep_different_things():
    """Each kind of plane has a pool; blocks are copied in all of them, and swapped out and in."""
    specs = [AttentionSpec(2, 6), LatentSpec(1, 3), AttentionSpec(2, 6)]
    cache = KVCache(specs, CacheLayout(4, 5, torch.float32, CPU))
    assert [pool.shape[:2] for pool in cache.pools] == [(4, 6), (1, 6), (1, 6)]
    assert [[*plane.shape[1:]] for plane in cache.layers[1]] == [[4, 3], [4]]
    assert cache.num_bytes == 6 * block_bytes(specs, 4, torch.float32) == 6 * (4 * 192 + 48 + 4)
    assert cache.layers[2][0].data_ptr() == cache.pools[0][2].data_ptr()
    for pool in cache.pools:
        pool[:, 1] = 7
    cache.copy_blocks(torch.tensor([1]), torch.tensor([4]))
    assert all((pool[:, 4] == 7).all() for pool in cache.pools)
    swap_space = SwapSpace(2, cache)
    swap_space.execute(Swaps(*(np.array([block]) for block in (4, 1, 1, 0))))
    assert all((pool[:, 0] == 7).all() and not pool[:, 5].any() for pool in cache.pools)


def test_an_allocation_that_fails_is_told():
    with pytest.raises(StartupError, match="do not fit"):
        KVCache([AttentionSpec(1 << 20, 1 << 20)], CacheLayout(16, 1 << 20, torch.float32, CPU))
