"""Pinned memory has the size that is asked for, and an error names it."""

from types import SimpleNamespace

import pytest
import torch

from worker.memory.swap_space import pinned_zeros


class Driver:
    """Stands in for the CUDA runtime: notes what it is told to pin."""

    def __init__(self, code: int = 0) -> None:
        self.pinned: list[tuple[int, int]] = []
        self._code = code

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def check(code: int) -> None:
            if code:
                raise RuntimeError("out of memory")

        runtime = SimpleNamespace(cudaHostRegister=self._register)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
        monkeypatch.setattr(torch.cuda, "check_error", check)

    def _register(self, address: int, num_bytes: int, flags: int) -> int:
        self.pinned.append((address, num_bytes))
        return self._code


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_exact_size(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype):
    driver = Driver()
    driver.install(monkeypatch)
    tensor = pinned_zeros((3, 5, 1000), dtype)
    assert driver.pinned == [(tensor.data_ptr(), 15_000 * dtype.itemsize)]
    assert tensor.shape == (3, 5, 1000) and tensor.dtype == dtype and not tensor.float().any()
    tensor[1] = 2.0
    assert tensor.float().sum() == 10_000


def test_nothing_is_pinned_for_no_blocks(monkeypatch: pytest.MonkeyPatch):
    driver = Driver()
    driver.install(monkeypatch)
    assert pinned_zeros((0, 4), torch.float32).shape == (0, 4) and not driver.pinned


@pytest.mark.parametrize("size", [(1000,), (1 << 60,)])
def test_no_memory(monkeypatch: pytest.MonkeyPatch, size: tuple[int, ...]):
    """Neither what the driver refuses nor what the system does."""
    Driver(code=2).install(monkeypatch)
    with pytest.raises(MemoryError, match=f"{4 * size[0]} bytes cannot be pinned"):
        pinned_zeros(size, torch.float32)
