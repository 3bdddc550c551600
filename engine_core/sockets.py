"""The frontends' socket: one thread that turns frames into events and messages into frames.

A ROUTER socket belongs to one thread, so this one does both directions. The step loop reaches it
through an inproc pair, whose reading end wakes the same poll that waits for frontends.
"""

import errno
import logging
import signal
import threading
from collections import deque
from collections.abc import Callable
from math import ceil
from time import monotonic

import zmq
from google.protobuf.message import DecodeError

from engine_core.events import FrontendGone, Inbox, Received, SocketsFailed
from pagewire.curve import EngineKey
from pagewire.internal.v1.engine_pb2 import EngineMessage, FrontendMessage
from pagewire.transport import BadFrame, bind_router, pack, unpack

log = logging.getLogger(__name__)

MAX_BACKLOG_BYTES = 16 << 20
"""Kept for a frontend that does not read, beyond what ZeroMQ keeps; then it counts as gone."""
_MAX_UNSENT = 1000
"""Messages that ZeroMQ keeps for it: one per step."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.5
"""Between attempts to send a backlog: a ROUTER does not say which peer is writable again. One that says
something reads again, most likely: it is tried at once."""
_LINGER_MS = 500
"""What the last messages get to leave this process."""
_MESSAGES_PER_TURN = 256
"""Taken from one side before the other gets its turn."""


class _Backlog:
    """Frames that a frontend did not take yet, oldest first."""

    def __init__(self, now: float) -> None:
        self.frames: deque[bytes] = deque()
        self.bytes = 0
        self.pause = _FIRST_PAUSE_S
        self.next_try = now + self.pause

    def append(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.bytes += len(frame)

    def popleft(self) -> None:
        self.bytes -= len(self.frames.popleft())

    def clear(self) -> None:
        self.frames.clear()
        self.bytes = 0

    def put_off(self, now: float) -> None:
        """The next attempt comes later than this one did."""
        self.pause = min(2 * self.pause, _LONGEST_PAUSE_S)
        self.next_try = now + self.pause


class FrontendSockets:
    """Binds in the constructor, works from start() to close()."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        inbox: Inbox,
        key: EngineKey | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """inbox: where events go. key: for tcp. Raises StartupError when the address cannot be bound."""
        self.num_bad_frames = 0
        self._inbox = inbox
        self._clock = clock
        self._backlogs: dict[bytes, _Backlog] = {}
        self._router = bind_router(context, address, key, max_unsent=_MAX_UNSENT)
        self._outbound = context.socket(zmq.PULL)
        self._to_thread = context.socket(zmq.PUSH)
        for socket in (self._outbound, self._to_thread):
            socket.setsockopt(zmq.SNDHWM, 0)  # the step loop never waits for this thread
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.LINGER, 0)
        self._outbound.bind(f"inproc://frontends-{id(self)}")
        self._to_thread.connect(f"inproc://frontends-{id(self)}")
        self._thread = threading.Thread(target=self._run, name="frontends", daemon=True)

    def start(self) -> None:
        """From here on messages come in."""
        self._thread.start()

    def backlog_bytes(self) -> list[int]:
        """Of each frontend that does not read as fast as we write. For any thread."""
        return [backlog.bytes for backlog in list(self._backlogs.values())]

    def send(self, frontend: bytes, message: EngineMessage) -> None:
        """Sends, in order. Only for the thread that made this object; never waits."""
        self._to_thread.send_multipart([frontend, pack(message)])

    def close(self) -> None:
        """Sends what is left, then ends the thread and closes the sockets."""
        if self._thread.is_alive():
            self._to_thread.send(b"")
            self._thread.join()
        for socket in (self._router, self._outbound, self._to_thread):
            socket.close()

    # From here on: the thread.

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are the main thread's
        poller = zmq.Poller()
        poller.register(self._outbound, zmq.POLLIN)
        poller.register(self._inbox.room, zmq.POLLIN)
        try:
            open_ = True
            while open_:
                # A full inbox keeps messages in the socket, and so with those who send them.
                poller.register(self._router, 0 if self._inbox.is_full else zmq.POLLIN)
                poller.poll(self._timeout_ms())
                self._inbox.found_room()
                open_ = self._forward_outbound()
                self._receive()
                self._send_backlogs()
            self._router.setsockopt(zmq.LINGER, _LINGER_MS)
        except BaseException as error:  # the step loop must hear of it, whatever it is
            self._inbox.put(SocketsFailed(error))

    def _timeout_ms(self) -> int | None:
        """Until the next attempt to send a backlog."""
        if not self._backlogs:
            return None
        first = min(backlog.next_try for backlog in self._backlogs.values())
        return max(ceil(1000 * (first - monotonic())), 0)

    def _receive(self) -> None:
        for _ in range(_MESSAGES_PER_TURN):
            if self._inbox.is_full:
                return
            try:
                frontend, *frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if frontend in self._backlogs:
                self._backlogs[frontend].next_try = 0.0
            message = self._parse(frames)
            if message is None:
                self._count_bad_frame()
            else:
                self._inbox.put(Received(frontend, message, self._clock(), len(frames[0])))

    def _count_bad_frame(self) -> None:
        self.num_bad_frames += 1
        if self.num_bad_frames.bit_count() == 1:  # 1, 2, 4, 8 ...: a flood must not fill the log
            log.warning("unreadable messages on the frontends' socket, dropped: %d", self.num_bad_frames)

    def _parse(self, frames: list[bytes]) -> FrontendMessage | None:
        if len(frames) != 1:
            return None
        try:
            message = FrontendMessage.FromString(unpack(frames[0]))
        except (BadFrame, DecodeError):
            return None
        return message if message.WhichOneof("message") else None

    def _forward_outbound(self) -> bool:
        """Sends what the step loop has handed over. False when that was the last of it."""
        for _ in range(_MESSAGES_PER_TURN):
            try:
                parts = self._outbound.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            if len(parts) != 2:
                return False
            frontend, frame = parts
            backlog = self._backlogs.get(frontend)
            if backlog is not None:
                backlog.append(frame)
            elif not self._try_send(frontend, frame):
                self._backlogs[frontend] = backlog = _Backlog(monotonic())
                backlog.append(frame)
        return True

    def _send_backlogs(self) -> None:
        now = monotonic()
        for frontend, backlog in list(self._backlogs.items()):
            if backlog.bytes > MAX_BACKLOG_BYTES:
                # The loop ends its requests and says so to it: what else there was to say is over.
                backlog.clear()
                self._inbox.put(FrontendGone(frontend))
            if now < backlog.next_try:
                continue
            while backlog.frames and self._try_send(frontend, backlog.frames[0]):
                backlog.popleft()
            if backlog.frames:
                backlog.put_off(now)
            else:
                del self._backlogs[frontend]

    def _try_send(self, frontend: bytes, frame: bytes) -> bool:
        """False when the frontend takes nothing now. What is for one that is gone counts as sent."""
        try:
            self._router.send_multipart([frontend, frame], zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._inbox.put(FrontendGone(frontend))
        return True
