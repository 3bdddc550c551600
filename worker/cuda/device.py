"""A CUDA device as the backend uses it: one stream, on which everything runs in the order of its launch.

Only methods that say so wait for the device. Copies from and to the host go through pinned memory from
torch's pool, which reuses a piece once the copies that use it are done. So no step in flight reads a host
buffer that the next step overwrites.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from pagewire.host.resources import available_memory
from worker.upload import upload

Run = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Memory:
    """Memory of the device in bytes, as the driver reports it for all processes."""

    total: int
    free: int


class Event(Protocol):
    """A point in the stream."""

    def query(self) -> bool:
        """Returns whether the device has passed it."""

    def synchronize(self) -> None:
        """Waits until the device has passed it."""


class Device(Protocol):
    """Operations of a device. HostDevice is the reference implementation."""

    place: torch.device
    name: str
    arithmetic: str
    """What computes: devices with the same one give the same bits."""

    def send(self, values: npt.NDArray[np.generic]) -> torch.Tensor:
        """Copies values to the device; the caller may change them as soon as this returns."""

    def send_into(self, target: torch.Tensor, values: npt.NDArray[np.generic]) -> None:
        """Copies values to the target, whose address captured graphs know; see send()."""

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor on the host, valid once an event recorded after this call has passed."""

    def record(self) -> Event:
        """Returns an event behind everything launched so far."""

    def capture(self, run: Run) -> Run:
        """Returns a function that repeats the launches of run(), on the contents of the same addresses."""

    def synchronize(self) -> None:
        """Waits for everything launched so far."""

    def memory(self) -> Memory:
        """Returns the memory, without what torch only keeps for reuse. Waits."""

    def peak_of(self, run: Callable[[], object]) -> int:
        """Returns the peak of bytes that run() allocates beyond those already in use. Waits."""


class CudaDevice:
    """A CUDA device, of those that are visible to the process (CUDA_VISIBLE_DEVICES)."""

    def __init__(self, index: int = 0) -> None:
        self.place = torch.device("cuda", index)
        self.name = torch.cuda.get_device_name(self.place)
        major, minor = torch.cuda.get_device_capability(self.place)
        self.arithmetic = f"sm_{major}{minor}, triton {version('triton')}"
        torch.cuda.set_device(self.place)
        for name in ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"):
            setattr(torch.backends.cuda.matmul, name, False)  # parts of a sum are added in float32
        self._pool = torch.cuda.graph_pool_handle()  # graphs run one after another, in the same memory

    def send(self, values: npt.NDArray[np.generic]) -> torch.Tensor:
        return upload(values, self.place)

    def send_into(self, target: torch.Tensor, values: npt.NDArray[np.generic]) -> None:
        target.copy_(torch.from_numpy(values).pin_memory(), non_blocking=True)

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def record(self) -> Event:
        """A thread that waits for the event sleeps, which leaves its core to other processes."""
        event = torch.cuda.Event(blocking=True)
        event.record()
        return event

    def capture(self, run: Run) -> Run:
        """Call run() once before: initialization on first use cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.place)

    def memory(self) -> Memory:
        self.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.place)
        return Memory(total, free)

    def peak_of(self, run: Callable[[], object]) -> int:
        """Counts the memory that torch reserves, fragmentation included."""
        self.memory()
        torch.cuda.reset_peak_memory_stats(self.place)
        before = torch.cuda.memory_reserved(self.place)
        run()
        self.synchronize()
        return int(torch.cuda.max_memory_reserved(self.place) - before)


MEMORY_PART = 0.1
"""Fraction of the available memory that is reported as the device's memory."""


class Passed:
    """An event of a HostDevice, whose work is always done."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class HostDevice:
    """The reference implementation: a CPU with Triton's interpreter (TRITON_INTERPRET=1).

    Launched work is done when the launch returns, and a captured graph is the function itself. So the
    backend's whole path runs without a GPU, some thousand times slower: for tests and debugging.
    """

    def __init__(self, memory: Memory | None = None) -> None:
        """memory: the memory to report; None: a fraction of what is available."""
        self.place, self.name = torch.device("cpu"), "Triton's interpreter"
        self.arithmetic = "interpreter"
        available = int(available_memory() * MEMORY_PART)
        self._memory = memory or Memory(available, available)

    def send(self, values: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(values.copy())

    def send_into(self, target: torch.Tensor, values: npt.NDArray[np.generic]) -> None:
        target.copy_(torch.from_numpy(values))

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def record(self) -> Event:
        return Passed()

    def capture(self, run: Run) -> Run:
        return run

    def synchronize(self) -> None:
        pass

    def memory(self) -> Memory:
        return self._memory

    def peak_of(self, run: Callable[[], object]) -> int:
        """Always 0: allocations are not counted."""
        run()
        return 0
