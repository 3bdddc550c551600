"""Ctrl-C that is not lost."""

import signal
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


def interruptible(items: Iterable[T]) -> Iterator[T]:
    """The items; raises KeyboardInterrupt at the next one after a Ctrl-C at the latest.

    Python raises it wherever the main thread is. Where that is code that cannot raise, such as a callback
    within gRPC, it is gone: so it is remembered here. Call it in the main thread.
    """
    came = False

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        for item in items:
            if came:
                raise KeyboardInterrupt
            yield item
    finally:
        signal.signal(signal.SIGINT, before)
