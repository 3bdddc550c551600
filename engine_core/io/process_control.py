"""What asks this process to do something: signals to end, and orders of its parent on standard input."""

import os
import select
import signal
from collections.abc import Callable
from types import FrameType
from typing import Self, TypeVar

from pagewire.host.spawn import Activation, WorkerStarted, read_order

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_Order = TypeVar("_Order", Activation, WorkerStarted)


class Stopped(Exception):
    """The process ends because it was asked to."""


class StopSignal:
    """Catches SIGTERM, SIGINT and SIGHUP while the context lasts, for a loop that polls a descriptor. To be
    entered in the main thread."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self._before: dict[signal.Signals, object] = {}
        self.on_first: Callable[[], None] | None = None
        """Called by the first signal, in place of ending the loop, where it is set: it may not wait."""

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() returned before
        os.close(self._reading)
        os.close(self._writing)

    def fileno(self) -> int:
        """Returns a descriptor that is readable from the first signal on."""
        return self._reading

    def request(self) -> None:
        """Asks the loop to end, as a signal does."""
        os.write(self._writing, b"x")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        first, self.on_first = self.on_first, None
        if first is not None:
            first()
        else:
            self.request()


class ParentOrders:
    """Reads the orders of the parent process, each a message of a socket. For one thread."""

    def __init__(self, stop: StopSignal, descriptor: int = 0) -> None:
        """stop: ends a wait. descriptor: of standard input."""
        self._stop, self._descriptor = stop, descriptor

    def next(self, kind: type[_Order]) -> _Order:
        """Waits for the next order, which is of this kind. Raises Stopped, also at the end of standard
        input."""
        ready, _, _ = select.select([self._descriptor, self._stop.fileno()], [], [])
        data = b"" if self._stop.fileno() in ready else os.read(self._descriptor, 65536)
        if not data:
            raise Stopped
        order = read_order(data)
        assert isinstance(order, kind)
        return order
