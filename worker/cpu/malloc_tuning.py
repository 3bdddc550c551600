"""What start-up leaves in memory, and what the C library does with memory that is freed."""

import ctypes
import gc
import mmap
import re
from pathlib import Path

from pagewire.host.gc_tuning import give_back_freed_memory

_LIBRARY = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) r-[x-]p .*\.so[.0-9]*\n(?:[A-Z].*\n)*?Anonymous: +0 kB", re.MULTILINE
)
"""In /proc/PID/smaps: what may not be written, and has not been, as by relocation."""
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt(), glibc's malloc.h


def settle() -> None:
    """Call it when the weights and kernels are there, before the warm-up: that takes back what steps need."""
    gc.collect()
    give_back_freed_memory()
    give_back_code()
    keep_freed_memory()


def keep_freed_memory() -> bool:
    """Memory that is freed from now on is kept for the next time, instead of going back to the system.

    A step's large temporaries, such as the logits (20 MB for 32 tokens of a vocabulary of 152,000), are
    otherwise new pages in every step, which the system clears and maps one after the other. Call it when
    the weights are there: what was taken before goes back as ever. False where the C library knows no such
    thing; nothing depends on it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, (1 << 31) - 1))


def give_back_code() -> None:
    """Code and constants of libraries are not in our memory any more. What is used again comes back from the
    system's cache of files, 64 KiB at a time, in a microsecond; most is not. torch and LLVM have touched some
    100 MB of it by now. Nothing is lost: every such page is still the file's.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is None:
        return
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    try:
        maps = Path("/proc/self/smaps").read_text()
    except OSError:
        return
    for found in _LIBRARY.finditer(maps):
        first, last = int(found[1], 16), int(found[2], 16)
        madvise(first, last - first, mmap.MADV_DONTNEED)
