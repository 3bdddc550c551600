"""What the C library does with memory that is freed."""

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt(), glibc's malloc.h


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
