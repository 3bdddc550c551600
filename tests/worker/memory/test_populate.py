"""The pages of the KV cache are there before the first step, or the worker does not start."""

import ctypes
import errno
import logging
import mmap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels.cpu.runtime import arena
from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from tests.eagle_heads import write_agreeing_pair
from tests.worker.fakes import initialize
from worker.load import load
from worker.memory.populate import MemoryClaim, Populate, claim_large, populate
from worker.platforms.cpu import CpuPlatform

MIB = 1 << 20


def resident(tensor: torch.Tensor) -> float:
    """The share of a tensor's whole pages that is in memory."""
    first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    count = (tensor.data_ptr() + tensor.nbytes - first) // mmap.PAGESIZE
    flags = (ctypes.c_ubyte * count)()
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    assert not mincore(first, count * mmap.PAGESIZE, flags), ctypes.get_errno()
    return sum(flag & 1 for flag in flags) / count


def test_pages_are_there_and_keep_what_was_written() -> None:
    # a mapping of its own: an allocator may hand out memory that was used before, whose pages are there
    memory = mmap.mmap(-1, 8 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    tensor[5 * MIB] = 7
    assert resident(tensor) < 0.9
    MemoryClaim("KV cache", [tensor, torch.empty(0)]).wait()
    assert resident(tensor) == 1.0 and tensor.sum() == 7


def fails_after(calls: int, error: int) -> tuple[list[int], Populate]:
    sizes: list[int] = []

    def populate(address: int, num_bytes: int) -> int:
        sizes.append(num_bytes)
        return error if len(sizes) > calls else 0

    return sizes, populate


def test_a_machine_without_the_memory_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    tensor = arena.zeros((9 * MIB,), torch.uint8)
    _, populate = fails_after(2, errno.ENOMEM)
    why = "only 4 of 9 MiB of memory could be claimed: Cannot allocate memory"
    with pytest.raises(StartupError) as raised:
        MemoryClaim("KV cache", [tensor], populate).wait()
    assert (raised.value.what, raised.value.why) == ("cannot allocate the KV cache", why)
    with caplog.at_level(logging.ERROR):
        MemoryClaim("KV cache", [tensor], fails_after(2, errno.ENOMEM)[1]).log_failure()
        for thread in threading.enumerate():
            if thread.name == "memory-claim-log":
                thread.join()
    assert [record.getMessage() for record in caplog.records] == [f"the KV cache may end a step: {why}"]


def test_an_older_system_finds_pages_later() -> None:
    sizes, populate = fails_after(0, errno.EINVAL)
    MemoryClaim("KV cache", [arena.zeros((9 * MIB,), torch.uint8)], populate).wait()
    assert len(sizes) == 1


def test_what_was_claimed_is_counted_to_the_end_of_each_tensor() -> None:
    """Pieces are of 2 MiB, and the last one of a tensor is shorter."""
    tensors = [
        torch.frombuffer(mmap.mmap(-1, 3 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=torch.uint8)
        for _ in range(2)
    ]
    sizes, refuse = fails_after(2, errno.ENOMEM)
    with pytest.raises(StartupError, match="only 3 of 6 MiB"):
        MemoryClaim("KV cache", tensors, refuse).wait()
    assert sizes == [2 * MIB, MIB, 2 * MIB]


def test_what_the_system_says_of_pages() -> None:
    """None are found for memory that is not mapped, or from within a page on."""
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    assert populate(address + 1, mmap.PAGESIZE) == errno.EINVAL
    if populate(address, mmap.PAGESIZE) == errno.EINVAL:
        pytest.skip("the system lacks the call")
    assert populate(address, 2 * mmap.PAGESIZE) == 0
    assert populate(mmap.PAGESIZE, mmap.PAGESIZE) == errno.ENOMEM, "nothing is mapped so low"


def test_a_small_cache_is_not_claimed() -> None:
    tensors = [arena.zeros((MIB,), torch.uint8)]
    assert claim_large("KV cache", tensors, 9 * MIB) is None
    claim = claim_large("KV cache", tensors, 8 * MIB)
    assert claim is not None
    claim.wait()


def test_a_worker_that_is_ready_has_its_cache(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.memory.populate.LARGE_PART", 0.0)
    executor, _ = load(initialize(checkpoint("llama"), num_blocks=256), CpuPlatform(WorkerConfig(threads=1)))
    for pool in executor.backend.cache.pools:
        assert resident(pool) == 1.0


@pytest.mark.parametrize("method", ["draft", "heads"])
def test_a_drafters_cache_is_claimed_too(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Keys and values of a draft model; of a head, its features besides."""
    monkeypatch.setattr("worker.memory.populate.LARGE_PART", 0.0)
    target = drafter = checkpoint("llama", head_dim=32, hidden_size=64, max_position_embeddings=256)
    if method == "heads":
        target, drafter = write_agreeing_pair(tmp_path, target, noise=0.03, tokens=range(3, 300))
    command = initialize(target, num_blocks=4096, speculation=f"{method}:{drafter},tokens=3")
    executor, _ = load(command, CpuPlatform(WorkerConfig(threads=1)))
    tensors = [tensor for tensor in executor.backend.drafter_tensors if tensor.nbytes > MIB]
    assert len(tensors) == (2 if method == "heads" else len(executor.backend.cache.pools))
    assert all(resident(tensor) == 1.0 for tensor in tensors)
    assert {id(tensor) for tensor in tensors} <= {id(tensor) for tensor in executor.backend.tensors}
