"""Stacks of the threads of a process that hangs, taken from outside before it is killed.

A process prepares by install(). On SIGUSR2 faulthandler writes the stacks of all of its threads into a file
without a name; it needs no lock of the interpreter for that, so threads that keep the GIL are shown as well.
Files, lines and functions are shown, and no values. A process that is stopped cannot write anything.
"""

import faulthandler
import logging
import os
import signal
import time
from pathlib import Path

from pagewire.host.proc_stat import read_vitals

log = logging.getLogger(__name__)

_NAME = "pagewire-stacks"
_PATIENCE_S = 0.5
_QUIET_S = 0.02
_MAX_BYTES = 1 << 16


def install() -> None:
    """Makes this process write its stacks on SIGUSR2, a fork into a file of its own. Where the kernel is not
    Linux, it does nothing."""
    if hasattr(os, "memfd_create"):
        parents, own = _file_of(os.getpid()), os.memfd_create(_NAME)
        if parents is not None:
            os.close(int(parents.name))
        faulthandler.register(signal.SIGUSR2, own, all_threads=True)


def log_stacks(name: str, pid: int) -> None:
    """Logs the stacks of another process of this user, if it can still write them. name: what to call it."""
    if stacks := stacks_of(pid):
        log.error("the %s (pid %d) makes no progress; its threads:\n%s", name, pid, stacks)


def stacks_of(pid: int) -> str:
    """Returns the stacks of another process of this user; "" if it does not write them within half a second.

    It must be a process that has not been waited for, so that the process id is still its own.
    """
    vitals, path = read_vitals(pid), _file_of(pid)
    if path is None or vitals is None or vitals.state in "TtZ":
        return ""
    try:
        with path.open("rb", buffering=0) as file:
            os.kill(pid, signal.SIGUSR2)
            _wait_until_quiet(file.fileno())
            return (os.pread(file.fileno(), _MAX_BYTES, 0)).decode(errors="replace").rstrip()
    except OSError:  # it ends by itself
        return ""


def _file_of(pid: int) -> Path | None:
    """Returns the way to the file of a process; None when it has not called install() yet."""
    try:
        with os.scandir(f"/proc/{pid}/fd") as files:
            return next(
                (Path(file) for file in files if os.readlink(file).startswith(f"/memfd:{_NAME}")), None
            )
    except OSError:
        return None


def _wait_until_quiet(descriptor: int) -> None:
    """Returns when a file has something and does not grow any more, or when patience ends."""
    ends, size = time.monotonic() + _PATIENCE_S, 0
    while time.monotonic() < ends:
        time.sleep(_QUIET_S)
        before, size = size, os.fstat(descriptor).st_size
        if size and size == before:
            return
