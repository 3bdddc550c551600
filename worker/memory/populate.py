"""Claims memory before it is used: the system finds the pages of the KV cache while the worker starts.

Memory that was allocated and never written takes no room, so a cache may be larger than what a machine with
other processes has left. Without a claim, the worker is killed in the step that reaches the missing page;
with one, the start fails in one line. (Imported before torch.)
"""

import ctypes
import errno
import logging
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pagewire.errors import StartupError

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

_POPULATE_WRITE = 23  # of madvise(), Linux 5.14 and later; Python has no name for it
_STEP = 2 << 20
"""Bytes that are populated at once."""

LARGE_PART = 0.125
"""Of the available memory: a smaller cache finds its pages when it needs them."""

Populate = Callable[[int, int], int]
"""Makes the system find pages for (address, bytes); returns 0 or an errno."""


def populate(address: int, num_bytes: int) -> int:
    """Makes the system find pages for memory of this process, which keeps its content. The address is that of
    a page. Returns 0, or the errno of the failure; EINVAL where the system lacks the call."""
    return ctypes.get_errno() if _madvise(address, num_bytes, _POPULATE_WRITE) else 0


_madvise = ctypes.CDLL(None, use_errno=True).madvise  # Python's own holds the interpreter's lock
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def claim_large(what: str, tensors: "Sequence[torch.Tensor]", available: int) -> "MemoryClaim | None":
    """Begins a claim if the memory is a large part of what is available, in bytes; None: it is not.

    Finding pages takes 0.1 to 3 s per GiB, which a start need not pay where there is plenty.
    """
    num_bytes = sum(tensor.nbytes for tensor in tensors)
    return MemoryClaim(what, tensors) if num_bytes >= LARGE_PART * available else None


class MemoryClaim:
    """The claim of a few tensors' memory, in a thread of its own."""

    def __init__(self, what: str, tensors: "Sequence[torch.Tensor]", populate: Populate = populate) -> None:
        """what: their name in errors. tensors: contiguous, on the CPU; they must outlive the claim."""
        self._what = what
        self._tensors = tensors
        self._populate = populate
        self._num_bytes = 0  # so far
        self._error = 0
        self._thread = threading.Thread(target=self._run, name="memory-claim", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits until all pages are there. Raises StartupError where the system has none left."""
        self._thread.join()
        if self._error:
            raise StartupError(f"cannot allocate the {self._what}", self._failure, "ask for fewer blocks")

    def log_failure(self) -> None:
        """Lets the claim go on while the worker serves: a failure becomes a line of the log."""
        threading.Thread(target=self._wait_and_log, name="memory-claim-log", daemon=True).start()

    def _wait_and_log(self) -> None:
        self._thread.join()
        if self._error:
            logger.error("the %s may end a step: %s", self._what, self._failure)

    @property
    def _failure(self) -> str:
        total = sum(tensor.nbytes for tensor in self._tensors)
        return (
            f"only {self._num_bytes >> 20} of {total >> 20} MiB of memory could be claimed:"
            f" {os.strerror(self._error)}"
        )

    def _run(self) -> None:
        for tensor in self._tensors:
            address = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
            for first in range(address, end, _STEP):
                error = self._populate(first, min(_STEP, end - first))
                if error == errno.EINVAL:  # an older system: pages come with the first write
                    return
                if error:
                    self._error = error
                    return
                self._num_bytes += min(_STEP, end - first)
