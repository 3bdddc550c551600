"""What the step loop is told by other threads, and the queue in which it finds that."""

import contextlib
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pagewire.internal.v1.engine_pb2 import FrontendMessage

MAX_EVENTS = 1 << 16
MAX_BYTES = 256 << 20
"""What may pile up while a step runs; from then on it piles up at the senders."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message came in."""

    frontend: bytes  # identity of the socket it came from
    message: FrontendMessage
    at: float  # on the core's clock
    size: int = 0  # bytes of its frame


@dataclass(frozen=True, slots=True)
class FrontendGone:
    """A frontend cannot be reached any more, or has stopped reading."""

    frontend: bytes


@dataclass(frozen=True, slots=True)
class SocketsFailed:
    """The thread that serves the frontends' socket has ended by a bug of ours."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Asked:
    """Somebody wants to know whether the loop turns."""

    answer: Callable[[bool], None]


Event = Received | FrontendGone | SocketsFailed | Asked


class Inbox:
    """Events in order of arrival, with a descriptor to wait for: any thread puts, the loop takes.

    The descriptor lets an idle loop wait for events, for signals and for the worker's death at once. While
    a step runs, events pile up. Nobody is kept from putting more, but whoever reads them from a socket asks
    `is_full` and lets them wait there, so that senders are held back; `room` tells when to go on.
    """

    def __init__(self, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        self._events: deque[Event] = deque()
        self._max_events, self._max_bytes = max_events, max_bytes
        self._bytes_put = self._bytes_taken = 0  # each is written by one side only
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.room = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when events have been taken since somebody found it full."""
        self._was_full = False

    def __bool__(self) -> bool:
        return bool(self._events)

    def fileno(self) -> int:
        """Readable when there are events (and, now and then, when there are none)."""
        return self._eventfd

    @property
    def is_full(self) -> bool:
        """Whether no more should be read. For the one thread that reads."""
        self._was_full = True  # first: what is taken after this is told
        full = len(self._events) >= self._max_events or (
            self._bytes_put - self._bytes_taken >= self._max_bytes
        )
        self._was_full = full
        return full

    def found_room(self) -> None:
        """Takes note of `room`."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.room)

    def put(self, event: Event) -> None:
        """Adds an event and wakes the loop."""
        if isinstance(event, Received):
            self._bytes_put += event.size
        self._events.append(event)
        os.eventfd_write(self._eventfd, 1)

    def hear(self) -> None:
        """Takes note of the descriptor; then take(): what is put after this wakes the loop again."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)

    def take(self) -> list[Event]:
        """The events that are there now; never waits. Those that arrive meanwhile are for the next call."""
        if not self._events:  # as in most steps
            return []
        self.hear()
        return self._count([self._events.popleft() for _ in range(len(self._events))])

    def take_if(self, wanted: Callable[[Event], bool]) -> list[Event]:
        """Those of the events that are there now which are wanted; the others keep their order."""
        events = [self._events.popleft() for _ in range(len(self._events))]
        taken = [event for event in events if wanted(event)]
        self._events.extendleft(event for event in reversed(events) if not wanted(event))
        return self._count(taken)

    def close(self) -> None:
        """Closes the descriptors; nobody puts any more."""
        os.close(self._eventfd)
        os.close(self.room)

    def _count(self, taken: list[Event]) -> list[Event]:
        self._bytes_taken += sum(event.size for event in taken if isinstance(event, Received))
        if self._was_full and taken:
            os.eventfd_write(self.room, 1)
        return taken
