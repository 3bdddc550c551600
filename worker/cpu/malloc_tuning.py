"""Memory of a CPU worker after start-up: pages that only start-up needed, and the C library's heap."""

import ctypes
import gc
import mmap
import re
from pathlib import Path

from pagewire.host.gc_tuning import give_back_freed_memory

_LIBRARY = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) r-[x-]p .*\.so[.0-9]*\n(?:[A-Z].*\n)*?Anonymous: +0 kB", re.MULTILINE
)
"""In /proc/PID/smaps: a mapping of a library that is not writable and has not been written, as by
relocation."""
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of mallopt(), glibc's malloc.h


def use_one_heap() -> bool:
    """Makes all threads allocate from the C library's main heap. Call it before there are threads.

    Otherwise a thread has a heap of its own, and what it has freed at the end of that never returns to the
    system, not even by malloc_trim(): the threads that read weights left 92 MB of a model of 0.5B. Returns
    False where the C library has no such setting; nothing depends on it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_ARENA_MAX, 1))


def release_startup_memory() -> None:
    """Returns memory that start-up needed to the system, and keeps what is freed from now on.

    Call it once weights and kernels are loaded, before the warm-up, which faults in what steps need.
    """
    gc.collect()
    give_back_freed_memory()
    drop_library_pages()
    keep_freed_memory()


def keep_freed_memory() -> bool:
    """Makes the C library keep freed memory for reuse instead of returning it to the system.

    A step's large temporaries, such as the logits (20 MB for 32 tokens of a vocabulary of 152,000), are
    otherwise new pages in every step, which the system clears and maps one after the other. Call it once the
    weights are loaded: memory mapped before is returned as usual. Returns False where the C library has no
    such setting; nothing depends on it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, (1 << 31) - 1))


def drop_library_pages() -> None:
    """Drops the clean pages of libraries' code and constants from the process.

    Pages that are used again come back from the page cache, 64 KiB at a time, in a microsecond; most are not:
    start-up touches about 100 MB of torch and LLVM. With the demo model an idle worker has 219 MB resident
    instead of 346 MB, and 231 MB instead of 350 MB after 8 streams (benchmarks/service/startup.py).
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
