"""Memory for a model's weights, which the system clears while torch is imported.

Memory that is written for the first time is cleared by the system, page by page, at 0.1 to 1.7 s per GiB
(in virtual machines the host may have to find it first). That happens here in a thread of its own, from the
start of the worker on, as much as the checkpoint's files have bytes. What is not needed goes back.
"""

import contextlib
import ctypes
import math
import mmap
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from pagewire.errors import StartupError
from pagewire.gguf.header import is_gguf, read_header
from pagewire.gguf.tensor_types import Q4_0
from pagewire.internal.v1 import worker_pb2
from worker.group_shape import group_shape
from worker.memory.populate import populate

if TYPE_CHECKING:
    import torch

_STEP = 2 << 20
"""Bytes that are populated between two checks for release()."""


class WeightsMemory:
    """Zeroed memory, in pages of 2 MiB where the system has them."""

    def __init__(self, num_bytes: int) -> None:
        """Raises OSError or ValueError where that is impossible."""
        self._memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without such pages
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._populate, name="weights-memory", daemon=True)
        self._thread.start()

    def tensor(self) -> "torch.Tensor":
        """[bytes] uint8. It keeps the memory."""
        import torch

        return torch.frombuffer(self._memory, dtype=torch.uint8)

    def release(self, unused: int) -> None:
        """Returns the pages behind an address to the system, if the address is within. They read as zeros."""
        self._stopping.set()
        self._thread.join()
        offset = unused - self._address
        if offset < 0:  # not even just below: rounded up, that would be all of it
            return
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        if first < len(self._memory):
            self._memory.madvise(mmap.MADV_DONTNEED, first)

    def _populate(self) -> None:
        """Populates from the first byte to the last. Stops where memory is full or the system lacks the call:
        pages are then populated when they are first written."""
        for first in range(0, len(self._memory), _STEP):
            count = min(_STEP, len(self._memory) - first)
            if self._stopping.is_set() or populate(self._address + first, count):
                return


def weights_memory(initialize: worker_pb2.Initialize) -> WeightsMemory | None:
    """Returns memory of the size of the checkpoint's files, or of a rank's part of them, for a CPU. None if
    weights are not kept as the files have them, or if there is no room, which loading reports."""
    if initialize.quantization or initialize.load_format == "dummy":
        return None
    try:
        num_bytes = _memory_of(Path(initialize.model_path))
        return WeightsMemory(num_bytes // math.prod(group_shape(initialize)))
    except (OSError, ValueError, StartupError):
        return None


def _memory_of(path: Path) -> int:
    """Returns the bytes of a checkpoint's weights: those of its files, or 16 bits for each value of a GGUF
    file, which is unpacked unless it is in Q4_0."""
    if is_gguf(path):
        infos = read_header(path).tensors.values()
        return sum(info.num_bytes if info.type == Q4_0 else 2 * math.prod(info.shape) for info in infos)
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))
