"""Signals as events that a loop can wait for, together with pipes."""

import contextlib
import selectors
import signal
import socket
from types import FrameType
from typing import Self

STOPPING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


class Signals:
    """SIGINT, SIGTERM, SIGHUP and SIGCHLD, collected while the context lasts. Main thread only.

    SIGHUP stays ignored where it is: that is what nohup asks for.
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
        """Readable when a signal has come: for selectors."""
        return self._reading.fileno()

    def take(self) -> set[signal.Signals]:
        """The signals that came since the last call."""
        taken: set[signal.Signals] = set()
        with contextlib.suppress(BlockingIOError):
            while data := self._reading.recv(4096):
                taken.update(signal.Signals(number) for number in data)
        return taken

    def wait(self, seconds: float) -> set[signal.Signals]:
        """As take(), after waiting for one at most so long."""
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            selector.select(seconds)
        return self.take()


def _nothing(number: int, frame: FrameType | None) -> None:
    """A handler: a signal that is ignored instead would not write to the wake-up descriptor."""
