"""What a CUDA device is refused before anything is loaded."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels.triton import requirements
from pagewire.errors import StartupError
from tests.worker.cuda.host_devices import SMALL, load_on_the_host
from tests.worker.fakes import initialize
from worker.cuda.device import HostDevice, Memory
from worker.cuda.startup import limits
from worker.cuda.startup.limits import check_kernels, check_weights, find_device
from worker.families.registry import read_model_config


def test_drafts_beside_layers_that_keep_a_state(checkpoint: Callable[..., Path]):
    """Before anything is loaded."""
    command = initialize(checkpoint("qwen3_5"), **SMALL, speculation="lookup")
    with pytest.raises(StartupError, match="--speculate lookup: .* a state per row, and no kernel") as error:
        load_on_the_host(command)
    assert "--device cpu" in error.value.todo


@pytest.mark.parametrize(
    ("driver", "built", "refused"),
    [
        ((12, 8), "13.0", True),
        ((13, 0), "13.1", False),  # minor versions are compatible
        ((13, 2), "12.8", False),
        (None, "13.0", False),
        ((12, 8), None, False),
    ],
)
def test_a_driver_that_is_older_than_torch(
    driver: tuple[int, int] | None, built: str | None, refused: bool, monkeypatch: pytest.MonkeyPatch
):
    """Torch itself only finds no device then."""
    monkeypatch.setattr(limits, "_driver_version", lambda: driver)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(StartupError) as error:
        find_device()
    assert (
        "the driver supports CUDA 12.8, and this torch is built with CUDA 13.0" in str(error.value)
    ) == refused
    assert "update the driver" in error.value.todo or not refused


def test_the_version_of_a_driver(monkeypatch: pytest.MonkeyPatch):
    """As its library says it; there may be none, or one that fails."""

    class Library:
        code, number = 0, 13020

        @classmethod
        def cuDriverGetVersion(cls, number: object) -> int:
            number._obj.value = cls.number  # type: ignore[attr-defined]
            return cls.code

    monkeypatch.setattr(limits.ctypes, "CDLL", lambda name: Library)
    assert limits._driver_version() == (13, 2)
    Library.code = 34
    assert limits._driver_version() is None
    monkeypatch.setattr(limits.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError))
    assert limits._driver_version() is None


def test_a_device_below_ampere(checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    """Its name, what it has, and what is needed."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    device = HostDevice()
    device.place = torch.device("cuda")
    config = read_model_config(checkpoint("llama"))
    with pytest.raises(StartupError, match="Tesla T4 has compute capability 7.5; 8.0 .A100. and later"):
        check_kernels(device, torch.float32, config, 16)
    assert requirements.LEAST_CAPABILITY == (8, 0)


@pytest.mark.parametrize(
    ("weights", "free", "utilization", "why"),
    [
        (3, 9, 0.9, ""),
        (9.5, 9, 0.9, "9.0 GiB free of 10.0"),
        (5, 6, 0.9, "of which 4.0 are in use, so that 5.0 are left at --gpu-memory-utilization 0.9"),
        (5, 9.5, 0.3, "so that 2.5 are left at --gpu-memory-utilization 0.3"),
        (1, 9, 0.05, "so that 0.0 are left"),
    ],
)
def test_weights_beside_other_processes(weights: float, free: float, utilization: float, why: str):
    """What others have counts as used, before anything is read."""
    gib = 1 << 30
    device = HostDevice(Memory(10 * gib, int(free * gib)))
    if not why:
        check_weights(int(weights * gib), torch.bfloat16, device, utilization)
        return
    with pytest.raises(StartupError) as error:
        check_weights(int(weights * gib), torch.bfloat16, device, utilization)
    assert why in str(error.value) and f"the weights take {weights:.1f} GiB in bfloat16" in str(error.value)
    assert ("nvidia-smi" in error.value.todo) == (weights <= free)
