"""The plain twin of a CUDA device: a CPU, on which Triton's kernels are interpreted (TRITON_INTERPRET=1).

What is launched has happened; copies are copies; a captured graph is the function itself. So the runner's
whole path runs where there is no GPU, some thousand times slower: for tests, and for looking at it.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from worker.cuda.device import Event, Memory, Run
from worker.memory.kv_cache import available_memory

MEMORY_PART = 0.1
"""Of the memory that is available, what stands for that of a device."""


class Passed:
    """An event of a device that waits for everything."""

    def query(self) -> bool:
        """See worker.cuda.device.Event."""
        return True

    def synchronize(self) -> None:
        """See worker.cuda.device.Event."""


class HostDevice:
    """A worker.cuda.device.Device."""

    def __init__(self, memory: Memory | None = None) -> None:
        """memory: what to say of it; default: a part of what is there."""
        self.place, self.name = torch.device("cpu"), "Triton's interpreter"
        available = int(available_memory() * MEMORY_PART)
        self._memory = memory or Memory(available, available)

    def send(self, values: npt.NDArray[np.generic]) -> torch.Tensor:
        """See Device."""
        return torch.from_numpy(values.copy())

    def send_into(self, target: torch.Tensor, values: npt.NDArray[np.generic]) -> None:
        """See Device."""
        target.copy_(torch.from_numpy(values))

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """See Device."""
        return tensor.clone()

    def record(self) -> Event:
        """See Device."""
        return Passed()

    def capture(self, run: Run) -> Run:
        """See Device."""
        return run

    def synchronize(self) -> None:
        """See Device."""

    def memory(self) -> Memory:
        """See Device."""
        return self._memory

    def peak_of(self, run: Callable[[], object]) -> int:
        """See Device. Nobody counts here."""
        run()
        return 0
