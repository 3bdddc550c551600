"""Memory of a CPU for weights, caches and activations: zeros that cost nothing until they are written.

numpy asks the system for pages of 2 MiB where an allocation has 4 MiB and more (torch does not). A
product for one token reads all weights once, and with pages of 4 KiB it spends a third of its time on
finding them: 21 against 29 GB/s on one thread, 28 against 32 on two (a 135M Llama, Zen 4).
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

ALIGNMENT = 64
"""In bytes: a register of a CPU's vector unit is then filled from one cache line."""
CHUNK = 64 << 20
"""Of an arena, in bytes: many large pages, of which at most the last ones stay unused."""
MATRIX_ROWS = 48
"""A matrix of an arena is followed by zeros up to a multiple of so many rows: kernels.linear's blocks."""


def zeros(size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """On the CPU, aligned. Raises MemoryError or ValueError when it does not fit."""
    memory = np.zeros(math.prod(size) * dtype.itemsize + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    return torch.from_numpy(memory)[begin : begin - ALIGNMENT].view(dtype).view(tuple(size))


class Arena:
    """Tensors of one owner, side by side in large pieces of memory. None is freed before all are."""

    def __init__(self, first: torch.Tensor | None = None) -> None:
        """first: [bytes] uint8, zeros, aligned; tensors are put there as long as they fit."""
        self._left = torch.empty(0, dtype=torch.uint8) if first is None else first
        self._wholes: dict[int, torch.Tensor] = {}

    def zeros(self, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """As zeros() above."""
        nbytes = -(-math.prod(size) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        if nbytes > len(self._left):
            self._left = zeros((max(CHUNK, nbytes),), torch.uint8)
        taken, self._left = self._left[:nbytes], self._left[nbytes:]
        return taken[: math.prod(size) * dtype.itemsize].view(dtype).view(tuple(size))

    def matrix(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """[rows, columns] of zeros; what follows it belongs to it, see take_whole()."""
        whole = self.zeros((-(-rows // MATRIX_ROWS) * MATRIX_ROWS, columns), dtype)
        self._wholes[whole.data_ptr()] = whole
        return whole[:rows]

    def take_whole(self, matrix: torch.Tensor) -> torch.Tensor | None:
        """A matrix() with the rows that follow it, for whoever is to own that memory; None for any other."""
        return self._wholes.pop(matrix.data_ptr(), None)

    @property
    def unused_address(self) -> int:
        """Where what is left of the last piece of memory begins."""
        return self._left.data_ptr()
