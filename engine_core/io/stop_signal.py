"""Signals that ask this process to end, as a descriptor that a loop can poll."""

import os
import signal
from types import FrameType
from typing import Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stopped(Exception):
    """The process ends because it was asked to."""


class StopSignal:
    """Catches SIGTERM, SIGINT and SIGHUP while the context lasts. To be entered in the main thread."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self._before: dict[signal.Signals, object] = {}

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
        self.request()
