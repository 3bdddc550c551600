"""Reliable Ctrl-C."""

import signal
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


def interruptible(items: Iterable[T]) -> Iterator[T]:
    """Yields items; raises KeyboardInterrupt before the next one after a Ctrl-C, at the latest.

    Python raises KeyboardInterrupt wherever the main thread happens to be. In code that ignores exceptions,
    such as a callback of gRPC, it would be lost: so it is remembered here. Main thread only.
    """
    received = False

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal received
        received = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        for item in items:
            if received:
                raise KeyboardInterrupt
            yield item
    finally:
        signal.signal(signal.SIGINT, before)
