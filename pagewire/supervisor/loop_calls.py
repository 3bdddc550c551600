"""Functions that other threads want a loop to call: a queue with a descriptor to wait for."""

import contextlib
import os
from collections import deque
from collections.abc import Callable


class Calls:
    """Any thread puts; the loop runs what is there when the descriptor is readable."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Readable when there are calls."""
        return self._eventfd

    def put(self, call: Callable[[], None]) -> None:
        """Wakes the loop."""
        self._calls.append(call)
        os.eventfd_write(self._eventfd, 1)

    def run(self) -> None:
        """All that are there now."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)
        for _ in range(len(self._calls)):
            self._calls.popleft()()

    def close(self) -> None:
        """Nobody puts any more."""
        os.close(self._eventfd)
