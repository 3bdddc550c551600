"""Tunes memory management once a process has started: Python's garbage collector and the C library's heap."""

import ctypes
import gc
import threading


def freeze_heap() -> None:
    """Exempts all objects that exist now from garbage collection; they live as long as the process.

    A tokenizer is 50,000 objects, which cost a full collection 20 ms: several steps of a small model.
    Does nothing outside the main thread: there the process belongs to other code (a test, a program that
    embeds a worker), and a collection could finalize objects of its event loops in the wrong thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    gc.collect()
    gc.freeze()


def freeze_imports() -> None:
    """The same, right after imports, without a collection: they leave no garbage. The collections that
    follow, 0.1 s each with torch, then leave out what was imported."""
    if threading.current_thread() is threading.main_thread():
        gc.freeze()


def give_back_freed_memory() -> bool:
    """Returns freed heap memory to the system, also pages between blocks in use: reading a tokenizer leaves
    60 MB of them. Returns False where the C library has no malloc_trim()."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))
