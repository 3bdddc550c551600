"""The socket of all ranks of a worker, and the one poll in which the engine core waits for them.

Whatever the step loop waits for (a result, or an event), the same poll also watches for the death of a rank
and for a signal to this process. The death of one rank is the death of the group. For one thread.
"""

import contextlib
import logging
import select
import time
from collections.abc import Callable, Collection, Iterator

import zmq
from google.protobuf.message import DecodeError

from engine_core.io.asides import Asides
from engine_core.io.process_control import Stopped, StopSignal
from engine_core.io.rank import Rank, find_hung
from engine_core.io.worker_process import SHUTDOWN_GRACE_S, WorkerConnection, WorkerDied
from pagewire import __version__
from pagewire.host.liveness import AwakeTime
from pagewire.internal.v1.worker_pb2 import WorkerHello, WorkerMessage
from pagewire.ipc import transport
from pagewire.ipc.curve import EngineKey

log = logging.getLogger(__name__)

LOOK_S = 0.25
"""Seconds between two calls of on_wait, and between two checks of the ranks, while a step runs."""


def nothing() -> None:
    """Does nothing."""


class RankSocket:
    """A ROUTER socket, to which each rank connects."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        stop: StopSignal,
        key: EngineKey | None,
        on_wait: Callable[[], None],
    ) -> None:
        """Binds. key: for tcp. on_wait: called by look(). Raises StartupError."""
        self.address = address
        self.ranks: list[Rank] = []
        self.asides = Asides()
        self.num_bad_frames = 0
        self.on_wait = on_wait
        self._socket = transport.bind_router(context, address, key)
        self.descriptor = int(self._socket.getsockopt(zmq.FD))
        """ZeroMQ's descriptor is edge-triggered: it is polled only after the socket was found empty."""
        self._watched = select.poll()
        self._stop, self._key = stop, key
        self._awake = AwakeTime(time.monotonic())
        self._next_look = 0.0
        self._connection: WorkerConnection | None = None
        self._has_hosts = False  # ranks of other hosts connect, with a key
        self.watch(self.descriptor)
        self.watch(stop.fileno())

    @property
    def has_news(self) -> bool:
        """Every rank has sent a message, or something that was done beside steps is answered."""
        return bool(self.asides) or all(rank.messages for rank in self.ranks)

    def watch(self, descriptor: int) -> None:
        """Adds a descriptor to those that end a poll()."""
        self._watched.register(descriptor, select.POLLIN)

    @contextlib.contextmanager
    def watching(self, descriptor: int) -> Iterator[None]:
        """Adds a descriptor to those that end a poll(), while the context lasts."""
        self.watch(descriptor)
        try:
            yield
        finally:
            self._watched.unregister(descriptor)

    def watch_connections(self) -> None:
        """Treats the loss of a connection as the death of a rank: for ranks that others have started."""
        self._connection = WorkerConnection(self._socket)
        self.watch(self._connection.fileno())

    def listen_to_hosts(self, address: str, silence_s: float) -> None:
        """Lets ranks of other hosts connect. silence_s: see transport.bind_tcp_too(). Raises StartupError."""
        self._has_hosts = True
        self.watch_connections()
        transport.bind_tcp_too(self._socket, address, self._key, silence_s=silence_s)

    def close(self) -> None:
        """Closes the socket, after a moment for the last messages."""
        if self._connection is not None:
            self._connection.close()
        self._socket.close(linger=int(1000 * SHUTDOWN_GRACE_S))

    def send(self, rank: Rank, frame: bytes) -> None:
        """Sends a frame to a rank. Raises WorkerDied."""
        assert rank.peer is not None
        try:
            transport.send_to(self._socket, rank.peer, frame)
        except zmq.ZMQError as error:  # EHOSTUNREACH; EAGAIN cannot occur: few commands are under way
            raise rank.death(f"it cannot be reached ({error})") from error

    def wait(self, rank: Rank, on_look: Callable[[], None] = nothing) -> WorkerMessage:
        """Returns the rank's next message. on_look: called a few times a second. Raises WorkerDied,
        Stopped."""
        while not rank.messages:
            on_look()
            if self.descriptor in self.poll(LOOK_S):
                self.receive()
            if not rank.messages:
                self.look(LOOK_S)  # also while messages of others come in
        return rank.messages.popleft()

    def poll(self, seconds: float) -> set[int]:
        """Waits until a descriptor is readable, for so many seconds at most. Raises WorkerDied, Stopped.

        Returns the readable descriptors; the socket's is among them if there is a message.
        """
        has_message = transport.is_readable(self._socket)
        if not has_message and self._connection is not None:
            self._check_connections(self._connection.take_lost())
        timeout = 0 if has_message else int(1000 * seconds)
        ready = {descriptor for descriptor, _ in self._watched.poll(timeout)}
        if self._stop.fileno() in ready:
            raise Stopped
        if has_message or (self.descriptor in ready and transport.is_readable(self._socket)):
            return ready | {self.descriptor}  # messages that it has sent come before its death
        ready.discard(self.descriptor)
        for rank in self.ranks:
            rank.check_alive(ready)
        return ready

    def _check_connections(self, lost: Collection[int]) -> None:
        """Raises WorkerDied if the connection of a rank is among those that have ended."""
        for rank in self.ranks:
            if rank.connection in lost:
                raise rank.death("its connection is lost")

    def look(self, pause: float) -> None:
        """Calls on_wait, and checks now and then that no rank hangs. Raises WorkerDied.

        pause: seconds that were meant to pass since the last call.
        """
        self.on_wait()
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + 0.8 * pause  # a poll may end a little early
        awake_s = self._awake.passed(now, pause)
        reasons = {rank: why for rank in self.ranks if (why := rank.look(awake_s))}
        hung = find_hung(self.ranks, reasons)
        if hung is not None:
            raise hung.hang(reasons[hung])

    def _check_hello(self, hello: WorkerHello, rank: Rank | None) -> None:
        """Raises WorkerDied for a rank of another pagewire, which may read plans otherwise, and for one on
        another host that has other flags. rank: that it is; None: it is no rank of this group."""
        is_elsewhere = self._has_hosts and hello.host
        if rank is None and not is_elsewhere:
            return
        name = f"rank {hello.rank} on {hello.host}" if rank is None else rank.name
        name += "" if is_elsewhere else f" (pid {hello.pid})"
        if hello.version != __version__:
            why = f"it is of pagewire {hello.version or 'unknown'}, and the engine core of {__version__}"
            raise WorkerDied(f"cannot use {name}", why, "start all processes from one installation")
        if is_elsewhere and hello.group_size != len(self.ranks):
            why = f"it is one of {hello.group_size} ranks, and the engine core has {len(self.ranks)}"
            raise WorkerDied(f"cannot use {name}", why, "start all ranks with the same flags")
        if rank is None:
            log.warning("%s is not needed: another process is that rank", name)

    def receive(self) -> None:
        """Hands one message to its rank. A message of any other process is counted and dropped."""
        identity, frame, connection = transport.receive_from(self._socket)
        try:
            message = WorkerMessage.FromString(transport.unpack(frame))
        except (transport.BadFrame, DecodeError):
            message = WorkerMessage()
        kind = message.WhichOneof("message")
        rank = next((rank for rank in self.ranks if rank.peer == identity), None)
        if rank is None and kind == "hello":
            rank = next((rank for rank in self.ranks if rank.is_greeted_by(message.hello)), None)
            if rank is not None:
                rank.greet(message.hello, identity, connection)
            self._check_hello(message.hello, rank)
        if kind is None or rank is None:
            self.num_bad_frames += 1
            if self.num_bad_frames.bit_count() == 1:  # 1, 2, 4, 8 ...: a flood must not fill the log
                log.warning("messages that are not of a worker, dropped: %d", self.num_bad_frames)
            return
        if kind == "failed":
            log.debug("the worker's traceback:\n%s", message.failed.traceback)
            raise rank.failure(message.failed)
        rank.hang_detector.heard()
        if not self.asides.add(rank.number, len(self.ranks), message):
            rank.messages.append(message)
