"""The CUDA path without a GPU: its plain twin of a device, and Triton's interpreter."""

import pytest

from kernels.gpu import support
from pagewire.internal.v1 import worker_pb2
from worker.cuda.device import Device, Memory
from worker.cuda.host_device import HostDevice
from worker.cuda.load import load
from worker.cuda.runner import CudaRunner

GIB = 1 << 30


def twin() -> HostDevice:
    """With a gibibyte."""
    return HostDevice(Memory(GIB, GIB))


def load_on(device: Device, command: worker_pb2.Initialize) -> tuple[CudaRunner, worker_pb2.Ready]:
    """Loads there."""
    return load(command, 0, lambda what, fraction: None, device)


def interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations of kernels/ are Triton's from here on, also on the CPU."""
    monkeypatch.setattr(support, "INTERPRETED", True)
