"""A queue of functions that other threads want an event loop to call, with a descriptor to wait for."""

import contextlib
import os
from collections import deque
from collections.abc import Callable


class LoopCalls:
    """Any thread calls put(); the loop calls run() when the descriptor is readable."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Returns a descriptor that is readable while calls are queued."""
        return self._eventfd

    def put(self, call: Callable[[], None]) -> None:
        """Queues a call and wakes the loop. Thread-safe."""
        self._calls.append(call)
        os.eventfd_write(self._eventfd, 1)

    def run(self) -> None:
        """Runs the calls queued so far."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)
        for _ in range(len(self._calls)):
            self._calls.popleft()()

    def close(self) -> None:
        """Closes the descriptor; put() must not be called afterwards."""
        os.close(self._eventfd)
