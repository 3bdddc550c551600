"""Processes: children that die with their parent, and what they tell it while they start."""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pagewire.errors import StartupError

_STATUS_FD = "PAGEWIRE_STATUS_FD"
_PARENT_PID = "PAGEWIRE_PARENT_PID"
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None


def spawn(
    arguments: Sequence[str], *, from_birth: bool = True, **options: Any
) -> tuple["subprocess.Popen[bytes]", int]:
    """Starts `python -m pagewire ARGUMENTS` as a child that dies with this process.

    Returns the process and the reading end of its status pipe (JSON lines, see Status). Call it
    from a thread that lives as long as the child shall: the parent-death signal is per thread.

    from_birth: before it runs anything of its own; one that is stopped while it imports is not left over
    then. For that, Python runs code of ours between fork and exec: not for processes with threads of
    others, whose locks may be held then. Without it, the child sees to it when it has come that far.
    """
    reading, writing = os.pipe()
    if from_birth and _prctl is not None:
        options["preexec_fn"] = partial(die_with, os.getpid(), signal.SIGKILL)
    try:
        child = subprocess.Popen(
            command(arguments),
            env={**child_environment(), _STATUS_FD: str(writing)},
            pass_fds=(writing,),
            stdin=subprocess.DEVNULL,
            **options,
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return child, reading


def command(arguments: Sequence[str]) -> list[str]:
    """What to execute for `pagewire ARGUMENTS`."""
    # -P: a folder called `worker` where the user happens to be must not hide ours.
    return [sys.executable, "-P", "-m", "pagewire", *arguments]


def child_environment() -> dict[str, str]:
    """Of a child that shall die with this process. It has no status pipe."""
    environment = {**os.environ, **_import_path(), _PARENT_PID: str(os.getpid())}
    environment.pop(_STATUS_FD, None)
    return environment


def _import_path() -> dict[str, str]:
    """What lets a child import this package when it runs from a source tree, installed or not."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").is_file():
        return {}
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {"PYTHONPATH": os.pathsep.join([str(root), *others])}


def is_child() -> bool:
    """Whether spawn() started this process, so that somebody else tells the user what went wrong."""
    return _PARENT_PID in os.environ


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Arranges that this process gets a signal when the one that spawned it dies, by SIGKILL too.

    Does nothing in a process that was not started by spawn(), and where the kernel is not Linux.
    """
    parent = os.environ.get(_PARENT_PID)
    if parent is not None:
        die_with(int(parent), signum)


def die_with(parent: int, signum: int) -> None:
    """The same for any child of `parent`. Takes no lock, imports nothing: also for between fork and exec."""
    if _prctl is None:
        return
    _prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        os.kill(os.getpid(), signum)


class Status:
    """What a starting process tells the one that spawned it: JSON lines on an inherited pipe.

    {"event": "loading", "what": "weights", "fraction": 0.5}
    {"event": "ready", ...facts}
    {"event": "beat"}
    {"event": "failed", "what": ..., "why": ..., "todo": ..., "may_pass": false}
    """

    def __init__(self) -> None:
        fd = os.environ.pop(_STATUS_FD, None)
        self._fd = int(fd) if fd is not None else None
        if self._fd is not None:
            os.set_inheritable(self._fd, False)

    @property
    def attached(self) -> bool:
        """Whether somebody listens."""
        return self._fd is not None

    def loading(self, what: str, fraction: float) -> None:
        """Progress, 0 to 1."""
        self._send({"event": "loading", "what": what, "fraction": round(fraction, 4)})

    def ready(self, **facts: str | int | float) -> None:
        """Start-up is over."""
        self._send({"event": "ready", **facts})

    def failed(self, error: StartupError) -> None:
        """Start-up cannot succeed."""
        what = {"what": error.what, "why": error.why, "todo": error.todo}
        self._send({"event": "failed", **what, "may_pass": error.may_pass})

    def beat(self) -> None:
        """A loop goes round. A parent that does not read is not waited for."""
        if self._fd is not None and select.select([], [self._fd], [], 0)[1]:
            self._send({"event": "beat"})

    def _send(self, event: dict[str, str | int | float]) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):  # the parent may be gone: its death ends us anyway
                os.write(self._fd, json.dumps(event).encode() + b"\n")


class Pulse:
    """Proves to our parent that a loop goes round: to be called by the loop itself, in every turn.

    Not by a thread beside it, which would go on when the loop hangs.
    """

    INTERVAL_S = 0.5

    def __init__(self, beat: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        """beat: called twice a second at most. clock: seconds."""
        self._beat = beat
        self._clock = clock
        self._next = 0.0

    def __call__(self) -> None:
        """The loop has come round."""
        now = self._clock()
        if now >= self._next:
            self._next = now + self.INTERVAL_S
            self._beat()
