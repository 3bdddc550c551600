"""Starts child processes that die with their parent. They report status events on a pipe, and may get orders.

A supervisor writes orders to the standard input of an engine core, a line of JSON for each:

{"order": "activate", "after_kill": true, "address": "ipc:///folder/workers.ipc", "pids": [123]}
{"order": "worker", "pid": 124, "why": ""}
{"order": "worker", "pid": 0, "why": "no more processes"}

The second and third answer a request for a worker process (Status.request_worker).
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pagewire import rooms
from pagewire.errors import StartupError

_STATUS_FD = "PAGEWIRE_STATUS_FD"
_PARENT_PID = "PAGEWIRE_PARENT_PID"
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None


def spawn(
    arguments: Sequence[str], *, from_birth: bool = True, **options: Any
) -> tuple["subprocess.Popen[bytes]", int]:
    """Starts `python -m pagewire ARGUMENTS` as a child that dies with this process.

    Returns the process and the reading end of its status pipe (JSON lines, see Status). Call it from a thread
    that lives as long as the child: the parent-death signal is tied to the thread. Raises OSError.

    from_birth: set the signal between fork and exec, so that a child that is stopped while it imports is not
    left over. This runs Python code in the forked child, which is unsafe in processes with threads of other
    libraries, whose locks may be held. Without it, the child sets the signal itself once it runs.
    """
    reading, writing = os.pipe()
    if from_birth and _prctl is not None:
        options["preexec_fn"] = partial(die_with, os.getpid(), signal.SIGKILL)
    try:
        child = subprocess.Popen(
            command(arguments),
            env={**child_environment(), _STATUS_FD: str(writing)},
            pass_fds=(writing,),
            **{"stdin": subprocess.DEVNULL, **options},
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return child, reading


def command(arguments: Sequence[str]) -> list[str]:
    # -P: a folder called `worker` in the current directory must not hide ours.
    return [sys.executable, "-P", "-m", "pagewire", *arguments]


def child_environment() -> dict[str, str]:
    """Returns the environment of a child that dies with this process, without a status pipe."""
    environment = {**os.environ, **_import_path(), _PARENT_PID: str(os.getpid())}
    environment.pop(_STATUS_FD, None)
    return environment


def _import_path() -> dict[str, str]:
    """Lets a child import the rooms, and in a source tree this package."""
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys([str(rooms.folder()), *others]))}


def is_child() -> bool:
    """True if spawn() started this process: then its parent reports errors to the user."""
    return _PARENT_PID in os.environ


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Makes the kernel send this process a signal when its parent dies, by SIGKILL too.

    Does nothing in a process that was not started by spawn(), and where the kernel is not Linux.
    """
    parent = os.environ.get(_PARENT_PID)
    if parent is not None:
        die_with(int(parent), signum)


def die_with(parent: int, signum: int) -> None:
    """Does the same for any child of `parent`. Takes no lock and imports nothing: safe between fork and
    exec."""
    if _prctl is None:
        return
    _prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the call above
        os.kill(os.getpid(), signum)


class Status:
    """Writes the status events of this process to its parent: JSON lines on an inherited pipe.

    {"event": "worker", "arguments": [...]}
    {"event": "dismissed", "pid": 123}
    {"event": "standby"}
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
        """True if there is a pipe to a parent."""
        return self._fd is not None

    def request_worker(self, arguments: Sequence[str]) -> None:
        """Asks the parent process to start `pagewire ARGUMENTS`, a worker, which an order answers."""
        self._send({"event": "worker", "arguments": list(arguments)})

    def dismissed(self, pid: int) -> None:
        """Reports that a worker that the parent process has started is not needed any more."""
        self._send({"event": "dismissed", "pid": pid})

    def close(self) -> None:
        """Writes nothing from here on."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None

    def move_to(self, descriptor: int) -> None:
        """Writes to another pipe from here on."""
        self.close()
        self._fd = descriptor
        os.set_inheritable(descriptor, False)

    def standing_by(self) -> None:
        """Reports that the process has imported everything, and forks others when it is told to."""
        self._send({"event": "standby"})

    def loading(self, what: str, fraction: float) -> None:
        """Reports progress, 0 to 1."""
        self._send({"event": "loading", "what": what, "fraction": round(fraction, 4)})

    def ready(self, **facts: str | int | float) -> None:
        """Reports that the process serves, with facts about it."""
        self._send({"event": "ready", **facts})

    def failed(self, error: StartupError) -> None:
        """Reports that start-up has failed."""
        what = {"what": error.what, "why": error.why, "todo": error.todo}
        self._send({"event": "failed", **what, "may_pass": error.may_pass})

    def beat(self) -> None:
        """Sends a heartbeat, unless the pipe is full."""
        if self._fd is not None and select.select([], [self._fd], [], 0)[1]:
            self._send({"event": "beat"})

    def _send(self, event: Mapping[str, str | int | float | list[str]]) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):  # the parent may be gone: its death ends this process anyway
                os.write(self._fd, json.dumps(event).encode() + b"\n")


class Heartbeat:
    """Proves to the parent that a loop runs: the loop itself calls it in every iteration.

    A thread beside the loop would keep beating while the loop hangs.
    """

    INTERVAL_S = 0.5

    def __init__(self, beat: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        """beat: called at most twice a second. clock: seconds."""
        self._beat = beat
        self._clock = clock
        self._next = 0.0

    def __call__(self) -> None:
        """Beats if the interval has passed."""
        now = self._clock()
        if now >= self._next:
            self._next = now + self.INTERVAL_S
            self._beat()


@dataclass(frozen=True, slots=True)
class KeptWorkers:
    """The living ranks of an engine core that was killed."""

    address: str
    """Where they look for the next core."""
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Activation:
    """Lets an engine core serve."""

    after_kill: bool = False
    """The process whose place it takes, or the worker of that, was killed by SIGKILL."""
    kept: KeptWorkers | None = None
    """To be adopted, if they answer."""

    def line(self) -> bytes:
        order: dict[str, object] = {"order": "activate", "after_kill": self.after_kill}
        if self.kept is not None:
            order |= {"address": self.kept.address, "pids": self.kept.pids}
        return _line(order)


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """Answers a request for a worker process."""

    pid: int
    """0: the system could not start one."""
    why: str = ""
    """It could not."""

    def line(self) -> bytes:
        return _line({"order": "worker", "pid": self.pid, "why": self.why})


def read_order(line: bytes) -> Activation | WorkerStarted:
    """Returns the order of one line."""
    order = json.loads(line)
    if order["order"] == "worker":
        return WorkerStarted(order["pid"], order["why"])
    kept = KeptWorkers(order["address"], tuple(order["pids"])) if "pids" in order else None
    return Activation(order["after_kill"], kept)


def _line(order: dict[str, object]) -> bytes:
    return json.dumps(order).encode() + b"\n"
