"""What a process keeps of its start: objects of Python, and the memory of the C library."""

import ctypes
import gc


def settle() -> None:
    """What lives now lives as long as the process: the garbage collector need not look at it again. (A
    frontend's tokenizer is 50,000 objects, which took it 20 ms, some steps of a model, now and then.)"""
    gc.collect()
    gc.freeze()


def give_back_freed_memory() -> bool:
    """What has been freed goes back to the system, also between what is in use: reading a tokenizer leaves
    60 MB of it. False where the C library knows no such thing; nothing depends on it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))
