"""The frontends' socket: a thread turns frames into events; the step loop sends messages itself.

A ROUTER socket is for one thread at a time, so there is a lock around each use of it. The thread waits
outside of the lock, for ZeroMQ's descriptor, which is edge-triggered: a send consumes the edge of a message
that has arrived. So send() checks whether there is something to read, and wakes the thread then. The thread
takes no part in sending, unless a frontend does not read. (It once sent everything: waking it for each step
cost the core a quarter of its processor time.)
"""

import contextlib
import errno
import logging
import os
import select
import signal
import threading
from collections import deque
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
"""Queued for a frontend that does not read, beyond ZeroMQ's queue; above that it counts as gone."""
_MAX_UNSENT = 1000
"""Messages in ZeroMQ's queue for a frontend: one per step."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.5
"""Between attempts to send a backlog: a ROUTER does not tell which peer is writable again. A peer that sends
a message most likely reads again: its backlog is tried at once."""
_LINGER_MS = 500
"""Time for the last messages to be sent when the socket closes."""
_MESSAGES_PER_TURN = 256
"""Received before backlogs are tried again."""


class _Backlog:
    """Frames that a frontend has not taken yet, oldest first."""

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
        """Schedules the next attempt, after twice the pause."""
        self.pause = min(2 * self.pause, _LONGEST_PAUSE_S)
        self.next_try = now + self.pause


class FrontendSockets:
    """The socket and its thread, from start() to close()."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        inbox: Inbox,
        key: EngineKey | None = None,
    ) -> None:
        """Binds. inbox: receives the events. key: for tcp. Raises StartupError if it cannot bind."""
        self.num_bad_frames = 0
        self._inbox = inbox
        self._backlogs: dict[bytes, _Backlog] = {}
        self._router = bind_router(context, address, key, max_unsent=_MAX_UNSENT)
        self._lock = threading.Lock()
        """Held for each use of the socket and of the backlogs."""
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="frontends", daemon=True)

    def start(self) -> None:
        """Starts to receive messages."""
        self._thread.start()

    def backlog_bytes(self) -> list[int]:
        """Returns the bytes queued for each frontend that does not keep up. For any thread."""
        return [backlog.bytes for backlog in list(self._backlogs.values())]

    def send(self, frontend: bytes, message: EngineMessage) -> None:
        """Sends in order, without waiting for the frontend. For one thread."""
        frame = pack(message)
        with self._lock:
            is_behind = frontend in self._backlogs
            is_sent = not is_behind and self._try_send(frontend, frame)
            if not is_sent:
                self._keep(frontend, frame)
            must_wake = not (is_sent or is_behind) or is_readable(self._router)
        if must_wake:
            self._wake()

    def close(self) -> None:
        """Ends the thread and closes the socket, after a moment for the last messages."""
        if self._thread.is_alive():
            self._closing = True
            self._wake()
            self._thread.join()
        self._router.close(linger=_LINGER_MS)
        os.close(self._woken)

    def _wake(self) -> None:
        """Wakes the thread, which then checks everything."""
        os.eventfd_write(self._woken, 1)

    # Called with the lock held.

    def _try_send(self, frontend: bytes, frame: bytes) -> bool:
        """Returns False if the frontend's queue is full. A frame for a lost frontend counts as sent."""
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
        """Queues a frame, up to MAX_BACKLOG_BYTES."""
        backlog = self._backlogs.setdefault(frontend, _Backlog(monotonic()))
        backlog.append(frame)
        if backlog.bytes > MAX_BACKLOG_BYTES:
            # The loop will fail its requests and tell it so; nothing else is of use to it.
            backlog.clear()
            self._inbox.put(FrontendGone(frontend))

    def _send_backlog(self, frontend: bytes, now: float) -> None:
        """Sends as much of a backlog as the frontend takes."""
        backlog = self._backlogs[frontend]
        while backlog.frames and self._try_send(frontend, backlog.frames[0]):
            backlog.popleft()
        if backlog.frames:
            backlog.put_off(now)
        else:
            del self._backlogs[frontend]

    # The thread.

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are for the main thread
        poll, readable = select.poll(), int(self._router.getsockopt(zmq.FD))
        poll.register(self._woken, select.POLLIN)
        poll.register(self._inbox.room, select.POLLIN)
        try:
            while not self._closing:
                self._send_backlogs()  # first: sending, too, consumes edges of the descriptor
                is_all = self._receive()
                # A full inbox leaves messages in the socket, which holds back the frontends.
                poll.register(readable, 0 if self._inbox.is_full else select.POLLIN)
                poll.poll(self._timeout_ms() if is_all else 0)
                self._inbox.acknowledge_room()
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._woken)
        except BaseException as error:  # whatever it is, the step loop must fail
            self._inbox.put(SocketsFailed(error))

    def _timeout_ms(self) -> int | None:
        """Returns the time until the next attempt to send a backlog; None: there is none."""
        with self._lock:
            tries = [backlog.next_try for backlog in self._backlogs.values()]
        return max(ceil(1000 * (min(tries) - monotonic())), 0) if tries else None

    def _receive(self) -> bool:
        """Receives messages. Returns whether that was all that can be received now."""
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
                self._inbox.put(Received(frontend, message, monotonic(), len(frames[0])))
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
