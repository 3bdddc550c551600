"""The reference implementation of a device: a CPU with Triton's interpreter (TRITON_INTERPRET=1).

Launched work is done when the launch returns, and a captured graph is the function itself. So the backend's
whole path runs without a GPU, some thousand times slower: for tests and debugging.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from pagewire.host.resources import available_memory
from worker.cuda.device.device import Event, Memory, Run

MEMORY_PART = 0.1
"""Fraction of the available memory that is reported as the device's memory."""


class Passed:
    """An event of a device whose work is always done."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class HostDevice:
    """A worker.cuda.device.device.Device."""

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
