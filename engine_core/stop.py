"""Signals that ask this process to end, as events for a loop that waits in two places.

When idle, the step loop waits for its input queue; while the worker computes, for the worker. So a
signal puts an event into the queue and makes a descriptor readable.
"""

import os
import signal
from queue import SimpleQueue
from types import FrameType
from typing import Self

from engine_core.events import Event, Stop

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stopped(Exception):
    """The process ends because it was asked to."""


class StopSignal:
    """SIGTERM, SIGINT and SIGHUP while the context lasts (enter it in the main thread)."""

    def __init__(self, inputs: "SimpleQueue[Event]") -> None:
        self._inputs = inputs
        self._reading, self._writing = os.pipe()
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() returned before

    def fileno(self) -> int:
        """Readable from the first signal on."""
        return self._reading

    def request(self) -> None:
        """Asks the loop to end, as a signal does."""
        os.write(self._writing, b"x")
        self._inputs.put(Stop())

    def close(self) -> None:
        """Closes the descriptors."""
        os.close(self._reading)
        os.close(self._writing)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.request()  # SimpleQueue.put() is made to be called from signal handlers
