"""Which threads of a process have AVX-512's registers in use: how a peer that is held to AVX2 is caught.

A debugger can read which of a thread's registers hold anything. What a compiler ends a function with clears
the upper halves of registers, and neither the mask registers nor the registers 16 to 31: these keep what
they had last. Code for AVX-512 that has used none of them, or has left nothing but zeros, is not seen.
"""

import contextlib
import ctypes
import os
from pathlib import Path

from benchmarks.service.processes import PROC, below

PTRACE_GETREGSET, PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4204, 17, 0x4206, 0x4207
NT_X86_XSTATE = 0x202
WALL = 0x40000000
"""waitpid's: threads too."""
IN_USE_AT = 512
"""Where XSAVE's area has its header, whose first 8 bytes have a bit for each set of registers in use."""
ENDED = ("Z", "X")
AVX512 = {5: "mask registers", 6: "upper halves of 0 to 15", 7: "registers 16 to 31"}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


class _Area(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def threads_with_avx512(root: int, proc: Path = PROC) -> dict[str, list[str]]:
    """Returns the threads of a process, and of all below it, that have such registers in use, and which.

    Keys are "process id/thread id name". A thread that ends meanwhile is left out. Raises PermissionError
    where processes must not be traced. Each thread is stopped for well under a millisecond.
    """
    found = {}
    for pid in below(root, proc):
        for folder in _listed(proc / str(pid) / "task"):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                name, _, state = (folder / "stat").read_text().partition("(")[2].rpartition(")")
                if state.split()[0] in ENDED:
                    continue
                in_use = registers_in_use(int(folder.name))
                if used := [what for bit, what in AVX512.items() if in_use >> bit & 1]:
                    found[f"{pid}/{folder.name} {name}"] = used
    return found


def registers_in_use(thread: int) -> int:
    """Returns the bits of a thread's sets of registers (XSTATE_BV). Raises OSError."""
    _ptrace(PTRACE_SEIZE, thread)
    try:
        _ptrace(PTRACE_INTERRUPT, thread)
        os.waitpid(thread, WALL)
        room = ctypes.create_string_buffer(16384)
        area = _Area(ctypes.addressof(room), len(room))
        _ptrace(PTRACE_GETREGSET, thread, NT_X86_XSTATE, ctypes.byref(area))
    finally:
        with contextlib.suppress(ProcessLookupError):
            _ptrace(PTRACE_DETACH, thread)
    return int.from_bytes(room.raw[IN_USE_AT : IN_USE_AT + 8], "little")


def _ptrace(request: int, thread: int, address: int = 0, data: object = None) -> None:
    if _libc.ptrace(request, thread, address, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
