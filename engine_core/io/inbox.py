"""Events that other threads send to the step loop, and the queue in which the loop finds them."""

import contextlib
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pagewire.internal.v1.engine_pb2 import FrontendMessage

MAX_EVENTS = 1 << 16
MAX_BYTES = 256 << 20
"""Events and bytes that may be queued; beyond these, messages stay with their senders."""


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
    """The thread that serves the frontends' socket has ended by a bug."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class HealthProbe:
    """A health check waits for the loop's next turn."""

    answer: Callable[[bool], None]


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """The process was asked to end, and has time for it."""


Event = DrainRequested | Received | FrontendGone | SocketsFailed | HealthProbe


class Inbox:
    """Events in order of arrival, with a descriptor to poll: any thread puts, the loop takes.

    The descriptor lets an idle loop wait for events, for signals and for the worker's death at once. While
    a step runs, events are queued. put() never refuses; the thread that reads from a socket checks `is_full`
    first and leaves messages in the socket, which holds back their senders. `room` tells it when to continue.
    """

    def __init__(self, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        self._events: deque[Event] = deque()
        self._max_events, self._max_bytes = max_events, max_bytes
        self._bytes_put = self._bytes_taken = 0  # each is written by one side only
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.room = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when events have been taken since `is_full` was True."""
        self._was_full = False

    def __bool__(self) -> bool:
        return bool(self._events)

    def fileno(self) -> int:
        """Returns a descriptor that is readable when there are events, and sometimes when there are none."""
        return self._eventfd

    @property
    def is_full(self) -> bool:
        """Whether to stop reading. For the one thread that reads."""
        self._was_full = True  # first: what is taken from here on writes to `room`
        full = len(self._events) >= self._max_events or (
            self._bytes_put - self._bytes_taken >= self._max_bytes
        )
        self._was_full = full
        return full

    def acknowledge_room(self) -> None:
        """Clears `room`."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.room)

    def put(self, event: Event) -> None:
        """Adds an event and wakes the loop."""
        if isinstance(event, Received):
            self._bytes_put += event.size
        self._events.append(event)
        os.eventfd_write(self._eventfd, 1)

    def acknowledge(self) -> None:
        """Clears the descriptor; take() must follow. An event that is put after this wakes the loop again."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)

    def take(self) -> list[Event]:
        """Returns the events that are there now, without waiting; later ones are left to the next call."""
        if not self._events:  # as in most steps
            return []
        self.acknowledge()
        return self._count([self._events.popleft() for _ in range(len(self._events))])

    def take_if(self, wanted: Callable[[Event], bool]) -> list[Event]:
        """Returns those of the present events that are wanted; the others keep their order."""
        events = [self._events.popleft() for _ in range(len(self._events))]
        taken = [event for event in events if wanted(event)]
        self._events.extendleft(event for event in reversed(events) if not wanted(event))
        return self._count(taken)

    def close(self) -> None:
        """Closes the descriptors; no thread may put any more."""
        os.close(self._eventfd)
        os.close(self.room)

    def _count(self, taken: list[Event]) -> list[Event]:
        self._bytes_taken += sum(event.size for event in taken if isinstance(event, Received))
        if self._was_full and taken:
            os.eventfd_write(self.room, 1)
        return taken
