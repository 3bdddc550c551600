"""The worker: started, talked to, watched, buried.

All of it happens in the thread of the step loop, on a ROUTER socket of its own. Whatever that thread
waits for (a result, or something to do), it waits for the worker's death and for a signal to us in the
same poll.
"""

import contextlib
import json
import logging
import os
import select
import signal
import struct
import subprocess
from collections import deque
from collections.abc import Callable, Sequence

import zmq
from google.protobuf.message import DecodeError

from engine_core.events import Inbox
from engine_core.plan import Plan, encode_plan
from engine_core.result import Result, decode_result
from engine_core.stop import Stopped, StopSignal
from pagewire import process
from pagewire.errors import PagewireError
from pagewire.internal.v1.worker_pb2 import Failed, Initialize, Ready, Shutdown, WorkerCommand, WorkerMessage
from pagewire.transport import BadFrame, bind_router, pack, unpack

log = logging.getLogger(__name__)

_SHUTDOWN_GRACE_S = 0.5
"""Between Shutdown and SIGKILL. A worker has nothing to save."""
_LOOK_S, _IDLE_LOOK_S = 0.25, 1.0
"""Between two looks at what else there is to do, while we wait for the worker, and for events."""
_SEE_ABOVE = "see the lines above, then start again"

Spawn = Callable[[Sequence[str]], tuple["subprocess.Popen[bytes]", int]]


class WorkerDied(PagewireError):
    """The worker is gone, or has said that it cannot go on. Its fields are those of StartupError."""

    def __init__(self, what: str, why: str, todo: str = "", *, may_pass: bool = False) -> None:
        super().__init__(what, why, todo)
        self.what, self.why, self.todo, self.may_pass = what, why, todo, may_pass

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class WorkerLink:
    """One worker. (Several, for tensor and pipeline parallelism, will be a list of peers here.)"""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        stop: StopSignal,
        spawn: Spawn = process.spawn,
    ) -> None:
        """Binds. Raises StartupError."""
        self._address = address
        self._spawn = spawn
        self._socket = bind_router(context, address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(stop.fileno(), zmq.POLLIN)
        self._stop = stop
        self._submitted: deque[Plan] = deque()
        self._peer: bytes | None = None
        self._child: _Child | None = None
        self._connection: _Connection | None = None
        self.num_bad_frames = 0
        self.meanwhile: Callable[[], None] = lambda: None  # called while we wait; see core.Worker

    def start(self, initialize: Initialize, arguments: Sequence[str], *, external: bool) -> None:
        """Starts the worker (or waits for one that somebody else starts) and tells it what to load.

        arguments: more of them for its command line.
        """
        if external:
            log.info("waiting for a worker at %s", self._address)
            self._connection = _Connection(self._socket)
            self._poller.register(self._connection.monitor, zmq.POLLIN)
        else:
            command = ["worker", f"--engine={self._address}", "--rank=0", *arguments]
            self._child = _Child(*self._spawn(command))
            self._poller.register(self._child.pidfd, zmq.POLLIN)
        message = self._wait()
        if message.WhichOneof("message") != "hello":
            raise WorkerDied("cannot talk to the worker", "its first message is not a WorkerHello")
        log.info("worker %d connected (pid %d)", message.hello.rank, message.hello.pid)
        self._send(WorkerCommand(initialize=initialize))

    def wait_ready(self, on_progress: Callable[[str, float], None]) -> Ready:
        """Waits until the worker has loaded. on_progress: takes what is being done, and 0 to 1."""
        while True:
            message = self._wait()
            kind = message.WhichOneof("message")
            if kind == "ready":
                return message.ready
            if kind != "load_progress":
                raise WorkerDied("cannot talk to the worker", f"{kind} before Ready")
            on_progress(message.load_progress.what, message.load_progress.fraction)
            if self._child is not None:
                self._child.read_status()  # a full pipe would stop it

    def submit(self, plan: Plan) -> None:
        """Sends a plan. Raises WorkerDied."""
        self._send(WorkerCommand(step_plan=encode_plan(plan)))
        self._submitted.append(plan)

    def collect(self) -> Result:
        """Waits for the result of the oldest plan that has none. Raises WorkerDied, Stopped."""
        message = self._wait()
        try:
            return decode_result(message.step_result, self._submitted.popleft())
        except ValueError as error:
            raise WorkerDied(
                "cannot talk to the worker", f"{message.WhichOneof('message')}: {error}"
            ) from error

    def await_result(self, seconds: float) -> None:
        """See engine_core.core.Worker. Raises WorkerDied, Stopped."""
        while seconds > 0 and not self._poll(min(seconds, _LOOK_S)):
            self.meanwhile()
            seconds -= _LOOK_S

    def wait_for(self, inbox: Inbox) -> None:
        """Waits, while there is nothing to compute, until there may be events. Raises WorkerDied, Stopped."""
        self._poller.register(inbox.fileno(), zmq.POLLIN)
        try:
            while inbox.fileno() not in (ready := self._poll(_IDLE_LOOK_S)):
                if self._socket in ready and self._receive() is not None:
                    raise WorkerDied("cannot talk to the worker", "it sent something that nobody asked for")
                self.meanwhile()
        finally:
            self._poller.unregister(inbox.fileno())

    def close(self) -> None:
        """Ends the worker: by a message, and if that does not help at once, by SIGKILL."""
        with contextlib.suppress(WorkerDied):
            if self._peer is not None:
                self._send(WorkerCommand(shutdown=Shutdown()))
        if self._child is not None:
            self._child.bury(_SHUTDOWN_GRACE_S if self._peer is not None else 0.0)
        if self._connection is not None:
            self._connection.close()
        self._socket.close(linger=int(1000 * _SHUTDOWN_GRACE_S))

    def _send(self, command: WorkerCommand) -> None:
        assert self._peer is not None
        try:
            self._socket.send_multipart([self._peer, pack(command)], zmq.NOBLOCK)
        except zmq.ZMQError as error:  # EHOSTUNREACH; EAGAIN cannot be: there are few commands at a time
            raise self._death(f"it cannot be reached ({error})") from error

    def _wait(self) -> WorkerMessage:
        """The worker's next message. Raises WorkerDied, Stopped."""
        while True:
            ready = self._poll(_LOOK_S)
            if self._socket in ready:
                message = self._receive()
                if message is not None:
                    return message
            else:
                self.meanwhile()

    def _poll(self, seconds: float) -> dict[object, int]:
        """What is readable, once something is, or after so many seconds. Raises WorkerDied, Stopped."""
        ready = dict[object, int](self._poller.poll(int(1000 * seconds)))
        if self._stop.fileno() in ready:
            raise Stopped
        if self._socket in ready:
            return ready  # its last words come before the news of its death
        if self._child is not None and self._child.pidfd in ready:
            raise self._death("")
        if self._connection is not None and self._connection.monitor in ready and self._connection.is_lost():
            raise self._death("its connection is lost")
        return ready

    def _receive(self) -> WorkerMessage | None:
        """A message of our worker. None for anything else, which is counted."""
        identity, *frames = self._socket.recv_multipart()
        try:
            message = WorkerMessage.FromString(unpack(b"".join(frames)))
        except (BadFrame, DecodeError):
            message = WorkerMessage()
        kind = message.WhichOneof("message")
        if self._peer is None and kind == "hello" and self._expects(message.hello.pid):
            self._peer = identity
        if kind is None or identity != self._peer:
            self.num_bad_frames += 1
            log.warning("a message that is not of our worker was dropped (%d so far)", self.num_bad_frames)
            return None
        if kind == "failed":
            raise _failure(message.failed)
        return message

    def _expects(self, pid: int) -> bool:
        return self._child is None or self._child.pid == pid

    def _death(self, why: str) -> WorkerDied:
        """What to say about a worker that is gone."""
        if self._child is None:
            return WorkerDied("the worker is gone", why, _SEE_ABOVE)
        return self._child.cause_of_death(why)


class _Child:
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
        self._wait(_SHUTDOWN_GRACE_S)
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
        return WorkerDied(f"the worker (pid {self.pid}) is gone", why, _SEE_ABOVE, may_pass=was_killed)

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


class _Connection:
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

    def is_lost(self) -> bool:
        """Whether a connection was lost that had been made in full.

        Somebody who only looks whether the address is served is told of twice: as a handshake that
        failed, then as a connection that was lost.
        """
        while self.monitor.poll(0):
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


def _failure(failed: Failed) -> WorkerDied:
    log.debug("the worker's traceback:\n%s", failed.traceback)
    return WorkerDied(failed.what or "the worker failed", failed.why or failed.type, failed.todo)
