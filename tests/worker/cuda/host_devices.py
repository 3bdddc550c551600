"""The CUDA path without a GPU: on a device that is a CPU, in Triton's interpreter."""

from collections.abc import Callable

import pytest
import torch

from kernels.triton import requirements as support
from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from worker.cuda.backend import CudaBackend
from worker.cuda.device import Device, Event, HostDevice, Memory
from worker.executor.executor import StepExecutor
from worker.load import check, make_ready
from worker.platforms.cuda import CudaPlatform, LoadedOnCuda

GIB = 1 << 30
SMALL = {"max_num_seqs": 6, "num_blocks": 60, "block_size": 16, "max_num_batched_tokens": 64}
"""Fields of Initialize."""


def host_device() -> HostDevice:
    """With a gibibyte."""
    return HostDevice(Memory(GIB, GIB))


def model_on(device: Device, command: worker_pb2.Initialize) -> LoadedOnCuda:
    """A model with its weights, and no cache."""
    platform = CudaPlatform(WorkerConfig(), device)
    return platform.load_model(check(command, platform))


def load_on(
    device: Device, command: worker_pb2.Initialize
) -> tuple[StepExecutor[CudaBackend], worker_pb2.Ready]:
    """A runner that has not been warmed up: the interpreter has nothing to compile, and takes its time."""
    model = model_on(device, command)
    runner = model.assemble(command.num_blocks, command.swap_space_bytes)
    return runner, make_ready(model, runner, device.place.type, 0.0)


def load_on_the_host(command: worker_pb2.Initialize) -> tuple[StepExecutor[CudaBackend], worker_pb2.Ready]:
    """A tests.worker.fakes.Loader."""
    return load_on(host_device(), command)


def interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations of kernels/ are Triton's from here on, also on a CPU."""
    monkeypatch.setattr(support, "INTERPRETED", True)


class LateEvent:
    """Passes when it is told to, or waited for."""

    def __init__(self, land: Callable[[], None]) -> None:
        self.passed, self.waits, self._land = False, 0, land

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.waits += 1
        self.arrive()

    def arrive(self) -> None:
        if not self.passed:
            self.passed = True
            self._land()


class LateDevice(HostDevice):
    """What it fetches is there when an event behind it has passed, and not before: as on a device that is
    still at work. A reader that looks too early finds what is no token."""

    def __init__(self) -> None:
        super().__init__(Memory(GIB, GIB))
        self.events: list[LateEvent] = []
        self._under_way: list[tuple[torch.Tensor, torch.Tensor]] = []

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        host = torch.full_like(tensor, -7)
        self._under_way.append((host, tensor.clone()))
        return host

    def record(self) -> Event:
        arrived, self._under_way = self._under_way, []

        @torch.inference_mode()
        def land() -> None:
            for host, values in arrived:
                host.copy_(values)

        self.events.append(LateEvent(land))
        return self.events[-1]
