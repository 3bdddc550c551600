"""The worker: started, talked to, watched, buried.

All of it happens in the thread of the step loop, on a ROUTER socket of its own. Whatever that thread
waits for (a result, or something to do), it waits for the worker's death and for a signal to us in the
same poll.
"""

import contextlib
import logging
import select
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence

import zmq
from google.protobuf.message import DecodeError

from engine_core.io.hang_detector import WorkerWatch
from engine_core.io.inbox import Inbox
from engine_core.io.stop_signal import Stopped, StopSignal
from engine_core.io.worker_process import (
    SEE_ABOVE,
    SHUTDOWN_GRACE_S,
    WorkerChild,
    WorkerConnection,
    WorkerDied,
)
from engine_core.step.plan import Plan, encode_plan
from engine_core.step.result import Result, decode_result
from pagewire.host import spawn as process
from pagewire.host.liveness import AwakeTime
from pagewire.host.proc_stat import read_vitals
from pagewire.internal.v1.worker_pb2 import Failed, Initialize, Ready, Shutdown, WorkerCommand, WorkerMessage
from pagewire.ipc.curve import EngineKey
from pagewire.ipc.transport import BadFrame, bind_router, is_readable, pack, receive, send_to, unpack

log = logging.getLogger(__name__)

_LOOK_S, _IDLE_LOOK_S = 0.25, 0.5
"""Between two looks at what else there is to do, while we wait for the worker, and for events."""

Spawn = Callable[[Sequence[str]], tuple["subprocess.Popen[bytes]", int]]


class WorkerLink:
    """One worker. (Several, for tensor and pipeline parallelism, will be a list of peers here.)"""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        stop: StopSignal,
        spawn: Spawn = process.spawn,
        *,
        hang_timeout: float = 0.0,
        key: EngineKey | None = None,
    ) -> None:
        """Binds. hang_timeout: see WorkerWatch. key: for tcp. Raises StartupError."""
        self._address = address
        self._spawn = spawn
        self._socket = bind_router(context, address, key)
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        """Of the socket. It tells of changes only, and only who has looked: so we look, then wait."""
        self._watched = select.poll()
        self._watched.register(self._descriptor, select.POLLIN)
        self._watched.register(stop.fileno(), select.POLLIN)
        self._stop = stop
        self._submitted: deque[Plan] = deque()
        self._watch = WorkerWatch(hang_timeout)
        self._awake = AwakeTime(time.monotonic())
        self._next_look = 0.0
        self._peer: bytes | None = None
        self._child: WorkerChild | None = None
        self._connection: WorkerConnection | None = None
        self.num_bad_frames = 0
        self.meanwhile: Callable[[], None] = lambda: None  # called while we wait; see core.Worker

    @property
    def pid(self) -> int | None:
        """Of a worker that we have started."""
        return self._child.pid if self._child is not None else None

    def start(self, initialize: Initialize, arguments: Sequence[str], *, external: bool) -> None:
        """Starts the worker (or waits for one that somebody else starts) and tells it what to load.

        arguments: more of them for its command line.
        """
        if external:
            log.info("waiting for a worker at %s", self._address)
            self._connection = WorkerConnection(self._socket)
            self._watched.register(self._connection.fileno(), select.POLLIN)
        else:
            command = ["worker", f"--engine={self._address}", "--rank=0", *arguments]
            self._child = WorkerChild(*self._spawn(command))
            self._watched.register(self._child.pidfd, select.POLLIN)
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
            self._watch.spoke()
            if kind == "ready":
                self._watch.loaded(message.ready.prefill_us_per_token / 1e6)
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
        self._watch.sent(sum(plan.counts))

    def collect(self) -> Result:
        """Waits for the result of the oldest plan that has none. Raises WorkerDied, Stopped."""
        message = self._wait()
        try:
            result = decode_result(message.step_result, self._submitted.popleft())
        except ValueError as error:
            raise WorkerDied(
                "cannot talk to the worker", f"{message.WhichOneof('message')}: {error}"
            ) from error
        self._watch.ended(result.duration_us / 1e6)
        return result

    def await_result(self, seconds: float) -> None:
        """See engine_core.core.Worker. Raises WorkerDied, Stopped."""
        while seconds > 0 and not self._poll(min(seconds, _LOOK_S)):
            if seconds >= _LOOK_S:  # who waits for less looks soon anyway
                self._look(_LOOK_S)
            seconds -= _LOOK_S

    def wait_for(self, inbox: Inbox) -> None:
        """Waits, while there is nothing to compute, until there may be events. Raises WorkerDied, Stopped."""
        self._look(_IDLE_LOOK_S)  # who is woken again and again would not come to it below
        self._watched.register(inbox.fileno(), select.POLLIN)
        try:
            while inbox.fileno() not in (ready := self._poll(_IDLE_LOOK_S)):
                if self._descriptor in ready and self._receive() is not None:
                    raise WorkerDied("cannot talk to the worker", "it sent something that nobody asked for")
                self._look(_IDLE_LOOK_S)
            inbox.hear()
        finally:
            self._watched.unregister(inbox.fileno())

    def close(self) -> None:
        """Ends the worker: by a message, and if that does not help at once, by SIGKILL."""
        with contextlib.suppress(WorkerDied):
            if self._peer is not None:
                self._send(WorkerCommand(shutdown=Shutdown()))
        if self._child is not None:
            self._child.bury(SHUTDOWN_GRACE_S if self._peer is not None else 0.0)
        if self._connection is not None:
            self._connection.close()
        self._socket.close(linger=int(1000 * SHUTDOWN_GRACE_S))

    def _send(self, command: WorkerCommand) -> None:
        assert self._peer is not None
        try:
            send_to(self._socket, self._peer, pack(command))
        except zmq.ZMQError as error:  # EHOSTUNREACH; EAGAIN cannot be: there are few commands at a time
            raise self._death(f"it cannot be reached ({error})") from error

    def _wait(self) -> WorkerMessage:
        """The worker's next message. Raises WorkerDied, Stopped."""
        while True:
            if self._descriptor in self._poll(_LOOK_S):
                message = self._receive()
                if message is not None:
                    return message
            self._look(_LOOK_S)  # also when somebody else keeps us busy

    def _poll(self, seconds: float) -> set[int]:
        """Descriptors of what is readable, once something is, or after so many seconds. The socket's is among
        them if there is a message. Raises WorkerDied, Stopped."""
        has_message = is_readable(self._socket)
        if not has_message and self._connection is not None and self._connection.is_lost():
            raise self._death("its connection is lost")
        ready = {
            descriptor for descriptor, _ in self._watched.poll(0 if has_message else int(1000 * seconds))
        }
        if self._stop.fileno() in ready:
            raise Stopped
        if has_message or (self._descriptor in ready and is_readable(self._socket)):
            return ready | {self._descriptor}  # its last words come before the news of its death
        ready.discard(self._descriptor)
        if self._child is not None and self._child.pidfd in ready:
            raise self._death("")
        return ready

    def _look(self, pause: float) -> None:
        """While we wait: others want something of us, and the worker may hang. Raises WorkerDied.

        pause: seconds that we meant to wait since the last look.
        """
        self.meanwhile()
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + 0.8 * pause  # a poll may end a little early
        vitals = read_vitals(self._child.pid) if self._child is not None else None
        why = self._watch.look(self._awake.passed(now, pause), vitals)
        if not why:
            return
        name = "the worker"
        if self._child is not None:
            self._child.kill()
            name, why = f"the worker (pid {self._child.pid})", why + "; it was killed"
        raise WorkerDied(
            f"{name} hangs", why, "see the lines above; if it was only slow, raise --hang-timeout"
        )

    def _receive(self) -> WorkerMessage | None:
        """A message of our worker. None for anything else, which is counted."""
        identity, frame = self._socket.recv(), receive(self._socket)
        try:
            message = WorkerMessage.FromString(unpack(frame))
        except (BadFrame, DecodeError):
            message = WorkerMessage()
        kind = message.WhichOneof("message")
        if self._peer is None and kind == "hello" and self._expects(message.hello.pid):
            self._peer = identity
        if kind is None or identity != self._peer:
            self.num_bad_frames += 1
            if self.num_bad_frames.bit_count() == 1:  # 1, 2, 4, 8 ...: a flood must not fill the log
                log.warning("messages that are not of our worker, dropped: %d", self.num_bad_frames)
            return None
        if kind == "failed":
            raise _failure(message.failed)
        return message

    def _expects(self, pid: int) -> bool:
        return self._child is None or self._child.pid == pid

    def _death(self, why: str) -> WorkerDied:
        """What to say about a worker that is gone."""
        if self._child is None:
            return WorkerDied("the worker is gone", why, SEE_ABOVE)
        return self._child.cause_of_death(why)


def _failure(failed: Failed) -> WorkerDied:
    log.debug("the worker's traceback:\n%s", failed.traceback)
    return WorkerDied(failed.what or "the worker failed", failed.why or failed.type, failed.todo)
