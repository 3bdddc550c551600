"""What the step loop is told by other threads, and the queue in which it finds that."""

import contextlib
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pagewire.internal.v1.engine_pb2 import FrontendMessage


@dataclass(frozen=True, slots=True)
class Received:
    """A message came in."""

    frontend: bytes  # identity of the socket it came from
    message: FrontendMessage
    at: float  # on the core's clock


@dataclass(frozen=True, slots=True)
class FrontendGone:
    """A frontend cannot be reached any more, or has stopped reading."""

    frontend: bytes


@dataclass(frozen=True, slots=True)
class SocketsFailed:
    """The thread that serves the frontends' socket has ended by a bug of ours."""

    error: BaseException


Event = Received | FrontendGone | SocketsFailed


class Inbox:
    """Events in order of arrival, with a descriptor to wait for: any thread puts, the loop takes.

    The descriptor lets an idle loop wait for events, for signals and for the worker's death at once.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __bool__(self) -> bool:
        return bool(self._events)

    def fileno(self) -> int:
        """Readable when there are events (and, now and then, when there are none)."""
        return self._eventfd

    def put(self, event: Event) -> None:
        """Adds an event and wakes the loop."""
        self._events.append(event)
        os.eventfd_write(self._eventfd, 1)

    def take(self) -> list[Event]:
        """The events that are there now; never waits. Those that arrive meanwhile are for the next call."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)  # first: what is put after this wakes the loop again
        return [self._events.popleft() for _ in range(len(self._events))]

    def take_if(self, wanted: Callable[[Event], bool]) -> list[Event]:
        """Those of the events that are there now which are wanted; the others keep their order."""
        events = [self._events.popleft() for _ in range(len(self._events))]
        taken = [event for event in events if wanted(event)]
        self._events.extendleft(event for event in reversed(events) if not wanted(event))
        return taken

    def close(self) -> None:
        """Closes the descriptor; nobody puts any more."""
        os.close(self._eventfd)
