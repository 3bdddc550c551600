"""A CUDA device as the runner uses it: one stream, on which everything happens in the order of its launch.

Nothing here waits for the device but what says so. Copies from and to the host go through pinned memory, of
which torch keeps a pool: a piece is handed out again once the copies that use it are done. So there is no
buffer of ours that a step in flight could still be reading when the next one fills it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from worker.cuda.upload import upload

Run = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Memory:
    """Of the device, in bytes, by what the driver says of all processes."""

    total: int
    free: int


class Event(Protocol):
    """A point in the stream."""

    def query(self) -> bool:
        """Whether the device has passed it."""

    def synchronize(self) -> None:
        """Waits until it has."""


class Device(Protocol):
    """What the runner asks for. worker.cuda.host_device is the plain form of each."""

    place: torch.device
    name: str

    def send(self, values: npt.NDArray[np.generic]) -> torch.Tensor:
        """The values on the device. They may change as soon as this returns."""

    def send_into(self, target: torch.Tensor, values: npt.NDArray[np.generic]) -> None:
        """As send(), to where captured graphs look for them."""

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the host, once an event that is recorded from now on has passed."""

    def record(self) -> Event:
        """An event behind everything launched so far."""

    def capture(self, run: Run) -> Run:
        """What launches the same again: with the same addresses, on what they hold by then."""

    def synchronize(self) -> None:
        """Waits for everything launched so far."""

    def memory(self) -> Memory:
        """Without what torch only keeps for later. Waits."""

    def peak_of(self, run: Callable[[], object]) -> int:
        """Bytes that run() takes at most, beyond what was taken before. Waits."""


class CudaDevice:
    """The first of the devices that the process sees (CUDA_VISIBLE_DEVICES)."""

    def __init__(self) -> None:
        self.place = torch.device("cuda", 0)
        self.name = torch.cuda.get_device_name(self.place)
        torch.cuda.set_device(self.place)
        self._pool = torch.cuda.graph_pool_handle()  # graphs run one after another, in the same memory

    def send(self, values: npt.NDArray[np.generic]) -> torch.Tensor:
        """See Device."""
        return upload(values, self.place)

    def send_into(self, target: torch.Tensor, values: npt.NDArray[np.generic]) -> None:
        """See Device."""
        target.copy_(torch.from_numpy(values).pin_memory(), non_blocking=True)

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """See Device."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def record(self) -> Event:
        """See Device. Who waits for it sleeps, and leaves the core to others."""
        event = torch.cuda.Event(blocking=True)
        event.record()
        return event

    def capture(self, run: Run) -> Run:
        """See Device. Call run() once before: what it sets up on first use cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay

    def synchronize(self) -> None:
        """See Device."""
        torch.cuda.synchronize(self.place)

    def memory(self) -> Memory:
        """See Device."""
        self.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.place)
        return Memory(total, free)

    def peak_of(self, run: Callable[[], object]) -> int:
        """See Device. What torch reserves counts: its pieces do not always fit into each other."""
        self.memory()
        torch.cuda.reset_peak_memory_stats(self.place)
        before = torch.cuda.memory_reserved(self.place)
        run()
        self.synchronize()
        return int(torch.cuda.max_memory_reserved(self.place) - before)
