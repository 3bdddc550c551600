"""A worker's process, as far as the engine core can observe it: a child process, or only a connection."""

import contextlib
import json
import os
import select
import signal
import struct
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import zmq

from pagewire.errors import PagewireError
from pagewire.host.proc_stat import describe_exit, ended_from_outside, read_exit_code
from pagewire.internal.v1.worker_pb2 import Failed
from pagewire.ipc.transport import is_readable

SEE_ABOVE = "see the lines above, then start again"
SHUTDOWN_GRACE_S = 0.5
"""Seconds between Shutdown and SIGKILL. A worker has nothing to save."""


class WorkerDied(PagewireError):
    """The worker has ended, or cannot continue. The fields are those of StartupError."""

    def __init__(self, what: str, why: str, todo: str = "", *, may_pass: bool = False) -> None:
        super().__init__(what, why, todo)
        self.what, self.why, self.todo, self.may_pass = what, why, todo, may_pass

    @classmethod
    def reported(cls, failed: Failed) -> Self:
        """Returns the error that a worker has sent."""
        what, why = failed.what or "the worker failed", failed.why or failed.type
        return cls(what, why, failed.todo, may_pass=failed.may_pass)

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class WorkerProcess(ABC):
    """A worker process on this host."""

    def __init__(self, pid: int) -> None:
        """Raises OSError when it does not exist."""
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)

    @abstractmethod
    def read_status(self) -> None:
        """Reads what it reports beside its socket."""

    def cause_of_death(self, name: str, why: str) -> WorkerDied:
        """Returns the error that it reported; else how it ended; else `why`, what is known from outside.

        name: what messages call it.
        """
        _ends_within(self.pidfd, SHUTDOWN_GRACE_S)
        code = self._exit_code()
        if code is not None:
            why = describe_exit(code)
        may_pass = ended_from_outside(code)
        return WorkerDied(f"{name} (pid {self.pid}) is gone", why, SEE_ABOVE, may_pass=may_pass)

    def kill(self) -> None:
        """Sends SIGKILL: a process that hangs must not wake up and continue."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self, grace: float) -> None:
        """Waits `grace` seconds for it to end, then kills it."""
        if not _ends_within(self.pidfd, grace):
            self.kill()
        self._release()
        os.close(self.pidfd)

    @abstractmethod
    def _exit_code(self) -> int | None:
        """Returns how a process that has ended did so; None: it is unknown."""

    @abstractmethod
    def _release(self) -> None:
        """Releases what belongs to a process that has ended, or is about to."""


class WorkerChild(WorkerProcess):
    """A worker process that the engine core has started."""

    def __init__(self, child: "subprocess.Popen[bytes]", status: int) -> None:
        """status: the reading end of its status pipe. Takes over both."""
        super().__init__(child.pid)
        self._process = child
        self._status = status
        self._unread = b""
        self._failure: dict[str, str] | None = None
        os.set_blocking(status, False)

    def read_status(self) -> None:
        """Reads its status pipe, on which it reports failures from before it could connect."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._status, 65536):
                *lines, self._unread = (self._unread + data).split(b"\n")
                for event in map(json.loads, lines):
                    if event["event"] == "failed":
                        self._failure = event

    def cause_of_death(self, name: str, why: str) -> WorkerDied:
        died = super().cause_of_death(name, why)
        self.read_status()
        if self._failure is not None:
            return WorkerDied(self._failure["what"], self._failure["why"], self._failure["todo"])
        return died

    def _exit_code(self) -> int | None:
        return self._process.poll()

    def _release(self) -> None:
        self._process.wait()
        os.close(self._status)


class ParentsWorker(WorkerProcess):
    """A worker process that the engine core's parent has started, and waits for."""

    def __init__(self, pid: int, on_dismissed: Callable[[int], None]) -> None:
        """on_dismissed: told by close() that the parent may wait for the process. Raises OSError when it does
        not exist."""
        super().__init__(pid)
        self._on_dismissed = on_dismissed

    def read_status(self) -> None:
        """Its parent reads its status pipe."""

    def _exit_code(self) -> int | None:
        return read_exit_code(self.pid)

    def _release(self) -> None:
        self._on_dismissed(self.pid)


def _ends_within(pidfd: int, seconds: float) -> bool:
    """Returns whether a process ends within so many seconds."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


class WorkerConnection:
    """The connections of workers that others have started, perhaps in another process-id namespace.

    Their connections are all that can be observed of them.
    """

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self.monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)

    def fileno(self) -> int:
        """Returns a descriptor that is readable when there are events that take_lost() has not seen."""
        return int(self.monitor.getsockopt(zmq.FD))

    def take_lost(self) -> list[int]:
        """Returns the descriptors of connections that have ended since the last call, also of processes that
        have only looked whether the address is served."""
        lost = []
        while is_readable(self.monitor):
            _, descriptor = struct.unpack_from("=HI", self.monitor.recv_multipart()[0])
            lost.append(descriptor)
        return lost

    def close(self) -> None:
        """Stops watching."""
        self._socket.disable_monitor()
        self.monitor.close()
