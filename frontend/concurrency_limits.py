"""Limits how much a frontend works on at once: calls, and bytes of prompts being tokenized.

Both are checked before anything is tokenized, so that a rejection is returned within milliseconds.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from frontend.errors import FrontendFull
from pagewire.retry_after import RetryAfter


class ConcurrencyLimits:
    """Counts calls and bytes, and rejects what exceeds the limits. Belongs to the event loop's thread."""

    def __init__(self, max_calls: int, max_bytes: int, clock: Callable[[], float] = monotonic) -> None:
        """max_calls, max_bytes: 0: no limit."""
        self.num_calls = self.num_bytes = 0
        self.refused: Counter[str] = Counter()
        """Rejected calls since the start, by the limit that they met: "calls" or "bytes"."""
        self._max_calls, self._max_bytes = max_calls, max_bytes
        self._clock = clock
        self._calls, self._readings = RetryAfter(), RetryAfter()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Holds a slot for a call within the block. Raises FrontendFull."""
        if self._max_calls and self.num_calls >= self._max_calls:
            raise self._full("calls", self._calls)
        if 2 * self.num_calls <= self._max_calls:
            self._calls.forget()
        self.num_calls += 1
        try:
            yield
        finally:
            self.num_calls -= 1
            self._calls.freed(1, self._clock())

    @contextmanager
    def reading(self, size: int) -> Iterator[None]:
        """Counts a message of `size` bytes as being tokenized within the block. Raises FrontendFull.

        A message larger than the limit is admitted when no other is being tokenized.
        """
        if self._max_bytes and self.num_bytes and self.num_bytes + size > self._max_bytes:
            raise self._full("bytes", self._readings)
        self.num_bytes += size
        try:
            yield
        finally:
            self.num_bytes -= size
            self._readings.freed(1, self._clock())

    def _full(self, kind: str, estimate: RetryAfter) -> FrontendFull:
        self.refused[kind] += 1
        return FrontendFull(estimate.offer(1, self._clock()))
