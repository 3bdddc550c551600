"""A worker's process, as far as we can reach it: a child of ours, or only a connection."""

import contextlib
import json
import os
import select
import signal
import struct
import subprocess

import zmq

from pagewire.errors import PagewireError
from pagewire.ipc.transport import is_readable

SEE_ABOVE = "see the lines above, then start again"
SHUTDOWN_GRACE_S = 0.5
"""Between Shutdown and SIGKILL. A worker has nothing to save."""


class WorkerDied(PagewireError):
    """The worker is gone, or has said that it cannot go on. Its fields are those of StartupError."""

    def __init__(self, what: str, why: str, todo: str = "", *, may_pass: bool = False) -> None:
        super().__init__(what, why, todo)
        self.what, self.why, self.todo, self.may_pass = what, why, todo, may_pass

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class WorkerChild:
    """A worker that we have started."""

    def __init__(self, child: "subprocess.Popen[bytes]", status: int) -> None:
        self.pid = child.pid
        self.pidfd = os.pidfd_open(child.pid)
        self._process = child
        self._status = status
        self._unread = b""
        self._failure: dict[str, str] | None = None
        os.set_blocking(status, False)

    def read_status(self) -> None:
        """Takes in what it says on its status pipe: failures from before it could connect."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._status, 65536):
                *lines, self._unread = (self._unread + data).split(b"\n")
                for event in map(json.loads, lines):
                    if event["event"] == "failed":
                        self._failure = event

    def cause_of_death(self, why: str) -> WorkerDied:
        """Its own words, where it could still say them; else how it ended; else what we saw."""
        self._wait(SHUTDOWN_GRACE_S)
        self.read_status()
        if self._failure is not None:
            return WorkerDied(self._failure["what"], self._failure["why"], self._failure["todo"])
        code = self._process.poll()
        if code is not None:
            why = f"it ended with exit code {code}"
        if code is not None and code < 0:
            why = f"it was killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            why += ", which is also what happens when memory runs out"
        was_killed = code is not None and code < 0
        return WorkerDied(f"the worker (pid {self.pid}) is gone", why, SEE_ABOVE, may_pass=was_killed)

    def kill(self) -> None:
        """It must not wake up and go on."""
        self._process.kill()

    def bury(self, grace: float) -> None:
        """Waits for its end, for so many seconds; then sees to it."""
        if not self._wait(grace):
            self._process.kill()
        self._process.wait()
        os.close(self.pidfd)
        os.close(self._status)

    def _wait(self, seconds: float) -> bool:
        """Whether it ends within so many seconds."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(1000 * seconds))


class WorkerConnection:
    """A worker that somebody else has started, maybe in another process-id namespace: all that we
    can watch of it is its connection."""

    _HANDSHAKE_FAILED = (
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    )

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self.monitor = socket.get_monitor_socket(self._HANDSHAKE_FAILED | zmq.EVENT_DISCONNECTED)
        self._num_failed = 0

    def fileno(self) -> int:
        """Readable when there is something new since is_lost() has looked."""
        return int(self.monitor.getsockopt(zmq.FD))

    def is_lost(self) -> bool:
        """Whether a connection was lost that had been made in full.

        Somebody who only looks whether the address is served is told of twice: as a handshake that
        failed, then as a connection that was lost.
        """
        while is_readable(self.monitor):
            (kind,) = struct.unpack_from("=H", self.monitor.recv_multipart()[0])
            if kind != zmq.EVENT_DISCONNECTED:
                self._num_failed += 1
            elif self._num_failed:
                self._num_failed -= 1
            else:
                return True
        return False

    def close(self) -> None:
        """Stops watching."""
        self._socket.disable_monitor()
        self.monitor.close()
