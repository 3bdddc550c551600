"""The worker: a group of ranks, each a process, that execute every plan together.

Everything happens in the thread of the step loop, on one ROUTER socket. Whatever that thread waits for (a
result, or an event), the same poll also watches for the death of a rank and for a signal to this process.
The death of one rank is the death of the group.
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

from engine_core.io.inbox import Inbox
from engine_core.io.rank import Rank
from engine_core.io.rank_agreement import check_same_step, combine_ready
from engine_core.io.stop_signal import Stopped, StopSignal
from engine_core.io.worker_process import SHUTDOWN_GRACE_S, WorkerChild, WorkerConnection, WorkerDied
from engine_core.step.plan import Plan, encode_plan
from engine_core.step.result import Result, decode_result
from pagewire.host import spawn as process
from pagewire.host.liveness import AwakeTime
from pagewire.internal.v1.worker_pb2 import (
    Initialize,
    Ready,
    Shutdown,
    WorkerCommand,
    WorkerMessage,
)
from pagewire.ipc.curve import EngineKey
from pagewire.ipc.transport import BadFrame, bind_router, is_readable, pack, receive, send_to, unpack

log = logging.getLogger(__name__)

_LOOK_S, _IDLE_LOOK_S = 0.25, 0.5
"""Seconds between two calls of on_wait, and between two checks of the ranks: in a step, and when idle."""

Spawn = Callable[[Sequence[str]], tuple["subprocess.Popen[bytes]", int]]


class WorkerGroup:
    """The ranks of one model. Implements engine_core.core.Worker."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        stop: StopSignal,
        spawn: Spawn = process.spawn,
        *,
        hang_timeout: float = 0.0,
        key: EngineKey | None = None,
        heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        """Binds. Raises StartupError.

        hang_timeout: see HangDetector. key: for tcp. heartbeat: called a few times a second while the ranks
        load; the engine core then sets `on_wait` to its own.
        """
        self._address = address
        self._spawn = spawn
        self._hang_timeout = hang_timeout
        self._socket = bind_router(context, address, key)
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        """ZeroMQ's descriptor is edge-triggered: it is polled only after the socket was found empty."""
        self._watched = select.poll()
        self._watched.register(self._descriptor, select.POLLIN)
        self._watched.register(stop.fileno(), select.POLLIN)
        self._stop = stop
        self._submitted: deque[Plan] = deque()
        self._awake = AwakeTime(time.monotonic())
        self._next_look = 0.0
        self._ranks: list[Rank] = []
        self._connection: WorkerConnection | None = None
        self.num_bad_frames = 0
        self.on_wait = heartbeat

    @property
    def pids(self) -> list[int]:
        """Process ids by rank; empty if the engine core has not started the ranks."""
        return [rank.child.pid for rank in self._ranks if rank.child is not None]

    def start(self, initialize: Initialize, arguments: Sequence[Sequence[str]], *, external: bool) -> None:
        """Starts the ranks and tells them what to load. Raises WorkerDied, Stopped.

        arguments: of each rank, beyond those that every worker gets. external: ranks are started by others,
        and awaited.
        """
        size = len(arguments)
        if external:
            log.info("waiting for %s at %s", "a worker" if size == 1 else f"{size} ranks", self._address)
            self._connection = WorkerConnection(self._socket)
            self._watched.register(self._connection.fileno(), select.POLLIN)
        for number, own in enumerate(arguments):
            child = None if external else self._start_child(number, own)
            self._ranks.append(Rank(number, size, child, self._hang_timeout))
        for rank in self._ranks:
            message = self._wait(rank)
            if message.WhichOneof("message") != "hello":
                raise WorkerDied(f"cannot talk to {rank.name}", "its first message is not a WorkerHello")
            log.info("worker %d connected (pid %d)", rank.number, message.hello.pid)
            self._send(rank, pack(WorkerCommand(initialize=initialize)))

    def wait_ready(self, on_progress: Callable[[str, float], None]) -> Ready:
        """Waits until all ranks have loaded. on_progress: takes what rank 0 is doing, and 0 to 1."""
        return combine_ready([self._wait_ready(rank, on_progress) for rank in self._ranks])

    def submit(self, plan: Plan) -> None:
        """Sends a plan to all ranks. Raises WorkerDied."""
        frame, num_tokens = pack(WorkerCommand(step_plan=encode_plan(plan))), sum(plan.counts)
        for rank in self._ranks:
            self._send(rank, frame)
            rank.hang_detector.sent(num_tokens)
        self._submitted.append(plan)

    def collect(self) -> Result:
        """Waits until all ranks have executed the oldest plan without a result; returns that of rank 0.

        Raises WorkerDied, Stopped.
        """
        messages = []
        for rank in self._ranks:
            messages.append(self._wait(rank))
            rank.hang_detector.ended(messages[-1].step_result.duration_us / 1e6)
        first, plan = messages[0].step_result, self._submitted.popleft()
        for rank, message in zip(self._ranks, messages, strict=True):
            try:
                if rank.number == 0:
                    result = decode_result(first, plan)
                else:
                    check_same_step(first, message.step_result)
            except ValueError as error:
                kind = message.WhichOneof("message")
                raise WorkerDied(f"cannot talk to {rank.name}", f"{kind}: {error}") from error
        return result

    def await_result(self, seconds: float) -> None:
        """See engine_core.core.Worker. Raises WorkerDied, Stopped."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not all(rank.messages for rank in self._ranks):
            if self._descriptor in self._poll(min(left, _LOOK_S)):
                self._receive()
            elif left >= _LOOK_S:  # a shorter wait is followed by a look anyway
                self._look(_LOOK_S)

    def wait_for(self, inbox: Inbox) -> None:
        """Waits, while there is nothing to compute, until there may be events. Raises WorkerDied, Stopped."""
        self._look(_IDLE_LOOK_S)  # frequent events would otherwise keep this from ever looking
        self._watched.register(inbox.fileno(), select.POLLIN)
        try:
            while inbox.fileno() not in (ready := self._poll(_IDLE_LOOK_S)):
                if self._descriptor in ready:
                    self._receive()
                for rank in self._ranks:
                    if rank.messages:
                        raise WorkerDied(f"cannot talk to {rank.name}", "it sent a message without a plan")
                self._look(_IDLE_LOOK_S)
            inbox.acknowledge()
        finally:
            self._watched.unregister(inbox.fileno())

    def close(self) -> None:
        """Ends all ranks: by Shutdown, and by SIGKILL after SHUTDOWN_GRACE_S."""
        for rank in self._ranks:
            with contextlib.suppress(WorkerDied):
                if rank.peer is not None:
                    self._send(rank, pack(WorkerCommand(shutdown=Shutdown())))
        for rank in self._ranks:
            if rank.child is not None:
                rank.child.close(SHUTDOWN_GRACE_S if rank.peer is not None else 0.0)
        if self._connection is not None:
            self._connection.close()
        self._socket.close(linger=int(1000 * SHUTDOWN_GRACE_S))

    def _start_child(self, number: int, arguments: Sequence[str]) -> WorkerChild:
        command = ["worker", f"--engine={self._address}", f"--rank={number}", *arguments]
        child = WorkerChild(*self._spawn(command))
        self._watched.register(child.pidfd, select.POLLIN)
        return child

    def _wait_ready(self, rank: Rank, on_progress: Callable[[str, float], None]) -> Ready:
        while True:
            message = self._wait(rank)
            kind = message.WhichOneof("message")
            if kind == "ready":
                rank.hang_detector.loaded(message.ready.prefill_us_per_token / 1e6)
                return message.ready
            if kind != "load_progress":
                raise WorkerDied(f"cannot talk to {rank.name}", f"{kind} before Ready")
            if rank.number == 0:
                on_progress(message.load_progress.what, message.load_progress.fraction)
            if rank.child is not None:
                rank.child.read_status()  # a full pipe would block it

    def _send(self, rank: Rank, frame: bytes) -> None:
        assert rank.peer is not None
        try:
            send_to(self._socket, rank.peer, frame)
        except zmq.ZMQError as error:  # EHOSTUNREACH; EAGAIN cannot occur: few commands are under way
            raise rank.death(f"it cannot be reached ({error})") from error

    def _wait(self, rank: Rank) -> WorkerMessage:
        """Returns the rank's next message. Raises WorkerDied, Stopped."""
        while not rank.messages:
            if self._descriptor in self._poll(_LOOK_S):
                self._receive()
            if not rank.messages:
                self._look(_LOOK_S)  # also while messages of others come in
        return rank.messages.popleft()

    def _poll(self, seconds: float) -> set[int]:
        """Waits until a descriptor is readable, for so many seconds at most. Raises WorkerDied, Stopped.

        Returns the readable descriptors; the socket's is among them if there is a message.
        """
        has_message = is_readable(self._socket)
        if not has_message and self._connection is not None and self._connection.is_lost():
            raise self._ranks[0].death("its connection is lost")
        timeout = 0 if has_message else int(1000 * seconds)
        ready = {descriptor for descriptor, _ in self._watched.poll(timeout)}
        if self._stop.fileno() in ready:
            raise Stopped
        if has_message or (self._descriptor in ready and is_readable(self._socket)):
            return ready | {self._descriptor}  # messages that it has sent come before its death
        ready.discard(self._descriptor)
        for rank in self._ranks:
            rank.check_alive(ready)
        return ready

    def _look(self, pause: float) -> None:
        """Calls on_wait, and checks now and then that no rank hangs. Raises WorkerDied.

        pause: seconds that were meant to pass since the last call.
        """
        self.on_wait()
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + 0.8 * pause  # a poll may end a little early
        awake_s = self._awake.passed(now, pause)
        for rank in self._ranks:
            rank.check_progress(awake_s)

    def _receive(self) -> None:
        """Hands one message to its rank. A message of any other process is counted and dropped."""
        identity, frame = self._socket.recv(), receive(self._socket)
        try:
            message = WorkerMessage.FromString(unpack(frame))
        except (BadFrame, DecodeError):
            message = WorkerMessage()
        kind = message.WhichOneof("message")
        rank = next((rank for rank in self._ranks if rank.peer == identity), None)
        if rank is None and kind == "hello":
            rank = next((rank for rank in self._ranks if rank.is_greeted_by(message.hello)), None)
            if rank is not None:
                rank.peer = identity
        if kind is None or rank is None:
            self.num_bad_frames += 1
            if self.num_bad_frames.bit_count() == 1:  # 1, 2, 4, 8 ...: a flood must not fill the log
                log.warning(
                    "messages on the workers' socket that are not ours, dropped: %d", self.num_bad_frames
                )
            return
        if kind == "failed":
            log.debug("the worker's traceback:\n%s", message.failed.traceback)
            raise WorkerDied.reported(message.failed)
        rank.hang_detector.heard()
        rank.messages.append(message)
