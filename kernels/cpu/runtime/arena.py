"""Memory of a CPU for weights, caches and activations: zeros that cost nothing until they are written.

numpy asks the system for pages of 2 MiB where an allocation has 4 MiB and more (torch does not). A
product for one token reads all weights once, and with pages of 4 KiB it spends a third of its time on
finding them: 21 against 29 GB/s on one thread, 28 against 32 on two (a 135M Llama, Zen 4).
"""

import ctypes
import math
import mmap
from collections.abc import Sequence

import numpy as np
import torch

ALIGNMENT = 64
"""In bytes: a register of a CPU's vector unit is then filled from one cache line."""
CHUNK = 64 << 20
"""Of an arena, in bytes: many large pages, of which at most the last ones stay unused."""
MATRIX_ROWS = 48
"""A matrix of an arena is followed by zeros up to a multiple of so many rows: kernels.cpu.matmul.packed's
blocks."""


def zeros(size: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
    """Returns zeros; on the CPU, where nothing else is asked for, aligned and in pages that the system
    allocates when they are first written. Raises MemoryError, ValueError or RuntimeError when it does not
    fit."""
    if device is not None and device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    memory = np.zeros(math.prod(size) * dtype.itemsize + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    return torch.from_numpy(memory)[begin : begin - ALIGNMENT].view(dtype).view(tuple(size))


class Arena:
    """Tensors of one owner, side by side in large pieces of memory. None is freed before all are."""

    def __init__(self, first: torch.Tensor | None = None) -> None:
        """first: [bytes] uint8, zeros, aligned; tensors are put there as long as they fit."""
        self._left = torch.empty(0, dtype=torch.uint8) if first is None else first
        self._wholes: dict[int, torch.Tensor] = {}
        self._pieces = [self._left]
        self._hole = self._hole_end = 0  # addresses; see smaller()

    def zeros(self, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """As zeros() above."""
        nbytes = _aligned(math.prod(size) * dtype.itemsize)
        if nbytes > len(self._left):
            self._left = zeros((max(CHUNK, nbytes),), torch.uint8)
            self._pieces.append(self._left)
        taken, self._left = self._left[:nbytes], self._left[nbytes:]
        return taken[: math.prod(size) * dtype.itemsize].view(dtype).view(tuple(size))

    def matrix(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """[rows, columns] of zeros; what follows it belongs to it, see take_whole()."""
        whole = self.zeros((-(-rows // MATRIX_ROWS) * MATRIX_ROWS, columns), dtype)
        self._wholes[whole.data_ptr()] = whole
        return whole[:rows]

    def take_whole(self, matrix: torch.Tensor) -> torch.Tensor | None:
        """Returns a matrix() with the rows that follow it, and gives up its memory; or None."""
        return self._wholes.pop(matrix.data_ptr(), None)

    def smaller(self, given: torch.Tensor, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory for what a tensor of this arena becomes, which must not be larger: where it lies, or before
        it, where tensors that were given just before lay. That tensor is given up, and is to be read before
        this one is written. What is left of such tensors goes back to the system in close_hole(), or as
        soon as one is given that does not follow them."""
        begin, nbytes = given.data_ptr(), math.prod(size) * dtype.itemsize
        if begin != self._hole_end:
            self.close_hole()
            self._hole = begin
        self._hole_end = begin + _aligned(given.nbytes)
        piece = next(each for each in self._pieces if 0 <= begin - each.data_ptr() < len(each))
        first = self._hole - piece.data_ptr()
        self._hole += _aligned(nbytes)
        assert self._hole <= self._hole_end
        return piece[first : first + nbytes].view(dtype).view(tuple(size))

    def close_hole(self) -> None:
        """Gives back memory that smaller() has left."""
        first = -(-self._hole // mmap.PAGESIZE) * mmap.PAGESIZE
        count = (self._hole_end - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if count > 0:
            _madvise(first, count, mmap.MADV_DONTNEED)
        self._hole = self._hole_end = 0

    @property
    def unused_address(self) -> int:
        """Where what is left of the last piece of memory begins."""
        return self._left.data_ptr()


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
