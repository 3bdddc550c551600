"""Memory that is cleared ahead is zeros, holds what is written, and goes back where it is not needed."""

from pathlib import Path

import pytest
import torch

from kernels.cpu.runtime.arena import Arena
from pagewire.internal.v1.worker_pb2 import Initialize
from worker.weights.prefault import WeightsMemory, weights_memory

MIB = 1 << 20


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
    "fields", [{"model_path": "/nowhere"}, {"quantization": "int8"}, {"load_format": "dummy"}]
)
def test_where_there_is_none(fields: dict[str, str], tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(bytes(5000))
    assert weights_memory(Initialize(**{"model_path": str(tmp_path), **fields})) is None


def test_as_large_as_the_files(tmp_path: Path):
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(bytes(5000))
    memory = weights_memory(Initialize(model_path=str(tmp_path)))
    assert memory is not None and len(memory.tensor()) == 10_000
    memory.release(memory.tensor().data_ptr())
