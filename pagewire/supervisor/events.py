"""What the supervisor's selector waits for beside pipes: signals, and calls that other threads ask for."""

import contextlib
import os
import selectors
import signal
import socket
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Self

STOPPING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


class Signals:
    """Collects SIGINT, SIGTERM, SIGHUP and SIGCHLD while the context is open. Main thread only.

    SIGHUP stays ignored if it was: nohup asks for that.
    """

    def __init__(self) -> None:
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        for number in (*STOPPING, signal.SIGCHLD):
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, _nothing)
        self._wakeup_before = signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() returned before
        self._reading.close()
        self._writing.close()

    def fileno(self) -> int:
        """Returns a descriptor that is readable after a signal."""
        return self._reading.fileno()

    def take(self) -> set[signal.Signals]:
        """Returns the signals received since the last call."""
        taken: set[signal.Signals] = set()
        with contextlib.suppress(BlockingIOError):
            while data := self._reading.recv(4096):
                taken.update(signal.Signals(number) for number in data)
        return taken

    def wait(self, seconds: float) -> set[signal.Signals]:
        """Waits up to `seconds` for a signal and returns what take() does."""
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            selector.select(seconds)
        return self.take()


def _nothing(number: int, frame: FrameType | None) -> None:
    """Handles a signal by doing nothing; an ignored signal would not write to the wake-up descriptor."""


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
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)
        for _ in range(len(self._calls)):
            self._calls.popleft()()

    def close(self) -> None:
        """Closes the descriptor; put() must not be called afterwards."""
        os.close(self._eventfd)
