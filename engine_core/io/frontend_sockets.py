"""The frontends' socket: a thread turns frames into events; the step loop sends messages as they are made.

A ROUTER socket is for one thread at a time, so there is a lock around each use of it. The thread waits
outside of the lock, for ZeroMQ's descriptor: that says once that something happened, also to who sends and
has no use for it. So whoever sends looks whether there is something to read, and then rouses the thread.
That one has nothing to do with what is sent, unless a frontend does not take it. (It once sent everything:
waking it for each step cost the core a quarter of its processor time.)
"""

import contextlib
import errno
import logging
import os
import select
import signal
import threading
from collections import deque
from collections.abc import Callable
from math import ceil
from time import monotonic

import zmq
from google.protobuf.message import DecodeError

from engine_core.io.inbox import FrontendGone, Inbox, Received, SocketsFailed
from pagewire.internal.v1.engine_pb2 import EngineMessage, FrontendMessage
from pagewire.ipc.curve import EngineKey
from pagewire.ipc.transport import BadFrame, bind_router, is_readable, pack, send_to, unpack

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
"""Taken before backlogs get their turn."""


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
        self._lock = threading.Lock()
        """Around each use of the socket and of the backlogs."""
        self._roused = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="frontends", daemon=True)

    def start(self) -> None:
        """From here on messages come in."""
        self._thread.start()

    def backlog_bytes(self) -> list[int]:
        """Of each frontend that does not read as fast as we write. For any thread."""
        return [backlog.bytes for backlog in list(self._backlogs.values())]

    def send(self, frontend: bytes, message: EngineMessage) -> None:
        """Sends, in order; never waits for a frontend. For one thread."""
        frame = pack(message)
        with self._lock:
            is_behind = frontend in self._backlogs
            is_sent = not is_behind and self._try_send(frontend, frame)
            if not is_sent:
                self._keep(frontend, frame)
            is_news = not (is_sent or is_behind) or is_readable(self._router)
        if is_news:
            self._rouse()

    def close(self) -> None:
        """Ends the thread and closes the sockets; what was sent gets a moment to leave."""
        if self._thread.is_alive():
            self._closing = True
            self._rouse()
            self._thread.join()
        self._router.close(linger=_LINGER_MS)
        os.close(self._roused)

    def _rouse(self) -> None:
        """The thread shall look at everything again."""
        os.eventfd_write(self._roused, 1)

    # With the lock.

    def _try_send(self, frontend: bytes, frame: bytes) -> bool:
        """False when the frontend takes nothing now. What is for one that is gone counts as sent."""
        try:
            send_to(self._router, frontend, frame)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._inbox.put(FrontendGone(frontend))
        return True

    def _keep(self, frontend: bytes, frame: bytes) -> None:
        """For later, and only so much of it."""
        backlog = self._backlogs.setdefault(frontend, _Backlog(monotonic()))
        backlog.append(frame)
        if backlog.bytes > MAX_BACKLOG_BYTES:
            # The loop ends its requests and says so to it: what else there was to say is over.
            backlog.clear()
            self._inbox.put(FrontendGone(frontend))

    def _send_backlog(self, frontend: bytes, now: float) -> None:
        """As much of it as the frontend takes."""
        backlog = self._backlogs[frontend]
        while backlog.frames and self._try_send(frontend, backlog.frames[0]):
            backlog.popleft()
        if backlog.frames:
            backlog.put_off(now)
        else:
            del self._backlogs[frontend]

    # From here on: the thread.

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are the main thread's
        poll, readable = select.poll(), int(self._router.getsockopt(zmq.FD))
        poll.register(self._roused, select.POLLIN)
        poll.register(self._inbox.room, select.POLLIN)
        try:
            while not self._closing:
                self._send_backlogs()  # first: it has no use for what the descriptor says, either
                is_all = self._receive()
                # A full inbox keeps messages in the socket, and so with those who send them.
                poll.register(readable, 0 if self._inbox.is_full else select.POLLIN)
                poll.poll(self._timeout_ms() if is_all else 0)
                self._inbox.acknowledge_room()
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._roused)
        except BaseException as error:  # the step loop must hear of it, whatever it is
            self._inbox.put(SocketsFailed(error))

    def _timeout_ms(self) -> int | None:
        """Until the next attempt to send a backlog."""
        with self._lock:
            tries = [backlog.next_try for backlog in self._backlogs.values()]
        return max(ceil(1000 * (min(tries) - monotonic())), 0) if tries else None

    def _receive(self) -> bool:
        """Whether that was all that can be taken now."""
        for _ in range(_MESSAGES_PER_TURN):
            if self._inbox.is_full:
                return True
            try:
                with self._lock:
                    frontend, *frames = self._router.recv_multipart(zmq.NOBLOCK)
                    if frontend in self._backlogs:
                        self._backlogs[frontend].next_try = 0.0
            except zmq.Again:
                return True
            message = self._parse(frames)
            if message is None:
                self._count_bad_frame()
            else:
                self._inbox.put(Received(frontend, message, self._clock(), len(frames[0])))
        return False

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

    def _send_backlogs(self) -> None:
        now = monotonic()
        with self._lock:
            due = [frontend for frontend, backlog in self._backlogs.items() if backlog.next_try <= now]
            for frontend in due:
                self._send_backlog(frontend, now)
