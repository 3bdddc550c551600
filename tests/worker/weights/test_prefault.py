"""Memory that is cleared ahead is zeros, holds what is written, and goes back where it is not needed."""

import errno
import mmap
import threading
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from kernels.cpu.runtime.arena import Arena
from pagewire.internal.v1.worker_pb2 import Initialize
from tests.patience import PATIENCE_S
from worker.weights import prefault
from worker.weights.prefault import WeightsMemory, weights_memory

MIB = 1 << 20
PAGE = mmap.PAGESIZE


def resident_kib(address: int) -> int:
    """Of the mapping that begins there."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    assert any(int(line.split("-")[0], 16) == address for line in lines if "-" in line.split(" ")[0])
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))


def test_an_arena_begins_in_it_and_the_rest_goes_back():
    memory = WeightsMemory(8 * MIB)
    arena = Arena(memory.tensor())
    weight = arena.matrix(1000, 1024, torch.bfloat16).fill_(1)
    assert weight.data_ptr() == memory.tensor().data_ptr()
    memory._thread.join()  # all of it is resident, where the system can populate
    memory.release(arena.unused_address)
    assert resident_kib(weight.data_ptr()) <= 2 * 1024
    assert (weight == 1).all()
    later = arena.matrix(1000, 1024, torch.bfloat16)
    assert (later == 0).all() and memory.tensor().data_ptr() < later.data_ptr()


def test_a_model_that_is_larger_than_its_files():
    """A float16 checkpoint in float32: what does not fit is elsewhere, and nothing goes back."""
    memory = WeightsMemory(MIB)
    arena = Arena(memory.tensor())
    first = arena.matrix(48, 1024, torch.float32).fill_(1)
    second = arena.matrix(1000, 1024, torch.float32).fill_(2)
    memory.release(arena.unused_address)
    assert (first == 1).all() and (second == 2).all()


@pytest.mark.parametrize(
    ("unused", "kept"), [(0, 0), (1, PAGE), (PAGE, PAGE), (PAGE + 904, 2 * PAGE), (3 * PAGE, 3 * PAGE)]
)
def test_whole_pages_go_back_and_read_as_zeros(unused: int, kept: int):
    memory = WeightsMemory(4 * PAGE)
    tensor = memory.tensor().fill_(1)
    memory.release(tensor.data_ptr() + unused)
    assert (tensor[:kept] == 1).all() and (tensor[kept:] == 0).all()


@pytest.mark.parametrize("unused", [-1, -PAGE, 4 * PAGE, 1 << 40])
def test_nothing_goes_back_where_the_address_is_elsewhere(unused: int):
    """Below, even by a byte, at the end, and behind: of an arena that has gone on to other memory."""
    memory = WeightsMemory(4 * PAGE)
    tensor = memory.tensor().fill_(1)
    memory.release(tensor.data_ptr() + unused)
    assert (tensor == 1).all()


def test_all_of_it_is_populated_in_order(monkeypatch: pytest.MonkeyPatch):
    """By a thread that the end of the process does not wait for."""
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(prefault, "populate", lambda address, count: calls.append((address, count)))
    memory = WeightsMemory(5 * MIB)
    memory._thread.join()
    first = memory.tensor().data_ptr()
    assert calls == [(first, 2 * MIB), (first + 2 * MIB, 2 * MIB), (first + 4 * MIB, MIB)]
    assert memory._thread.daemon and memory._thread is not threading.current_thread()


def test_a_system_that_cannot_populate_is_asked_once(monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []
    monkeypatch.setattr(prefault, "populate", lambda address, count: calls.append(count) or errno.ENOMEM)
    memory = WeightsMemory(5 * MIB)
    memory._thread.join()
    assert calls == [2 * MIB]


def test_release_ends_the_thread_before_pages_go_back(monkeypatch: pytest.MonkeyPatch):
    """A thread that goes on would populate them again."""
    entered, made, stages = threading.Event(), threading.Event(), list[str]()

    def populate(address: int, count: int) -> int:
        stages.append("entered")
        entered.set()
        assert made.wait(PATIENCE_S) and memory._stopping.wait(PATIENCE_S)
        threading.Event().wait(0.05)  # release() could be done meanwhile
        stages.append("ended")
        return 0

    monkeypatch.setattr(prefault, "populate", populate)
    memory = WeightsMemory(5 * MIB)
    made.set()
    assert entered.wait(PATIENCE_S)
    memory.release(memory.tensor().data_ptr())
    assert stages == ["entered", "ended"], "no step after the one it was in"
    assert not memory._thread.is_alive()


@pytest.mark.parametrize(
    "fields", [{"model_path": "/nowhere"}, {"quantization": "int8"}, {"load_format": "dummy"}]
)
def test_where_there_is_none(fields: dict[str, str], tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(bytes(5000))
    assert weights_memory(Initialize(**{"model_path": str(tmp_path), **fields})) is None


def test_as_large_as_the_files(tmp_path: Path):
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(bytes(5000))
    for ranks, num_bytes in ((0, 10_000), (1, 10_000), (2, 5_000)):
        memory = weights_memory(Initialize(model_path=str(tmp_path), tensor_parallel_size=ranks))
        assert memory is not None and len(memory.tensor()) == num_bytes, "each rank has its part"
        memory.release(memory.tensor().data_ptr())


def test_values_of_a_gguf_file_take_16_bits_but_those_that_stay_packed(tmp_path: Path):
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tensor("a", np.zeros((3, 32), np.float32))
    writer.add_tensor("b", np.zeros((5, 32), np.float16))
    for name, kind in (("c", gguf.GGMLQuantizationType.Q4_0), ("d", gguf.GGMLQuantizationType.Q8_0)):
        values = gguf.quants.quantize(np.zeros((4, 64), np.float32), kind)
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    memory = weights_memory(Initialize(model_path=str(file)))
    assert memory is not None
    memory.release(memory.tensor().data_ptr())
    packed = 4 * 64 // 32 * (2 + 16)  # a scale in float16, and 32 values of 4 bits
    assert len(memory.tensor()) == 2 * (3 * 32 + 5 * 32 + 4 * 64) + packed
