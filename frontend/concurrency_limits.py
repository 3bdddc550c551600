"""How much a frontend takes on at once: calls, and bytes of prompts that are being read.

Both are asked before anything is tokenized, so that who is refused knows it within milliseconds. A call
counts until gRPC is done with it: one whose client does not take its status, too.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from frontend.errors import FrontendFull
from pagewire.retry_after import Comebacks


class Capacity:
    """Counts, and refuses what is too much. Belongs to the event loop's thread."""

    def __init__(self, max_calls: int, max_bytes: int, clock: Callable[[], float] = monotonic) -> None:
        """max_calls, max_bytes: 0: no bound."""
        self.num_calls = self.num_bytes = 0
        self.refused: Counter[str] = Counter()
        """Calls since the start, by what there was too much of."""
        self._max_calls, self._max_bytes = max_calls, max_bytes
        self._clock = clock
        self._calls, self._readings = Comebacks(), Comebacks()

    def enter(self, when_over: Callable[[Any], object]) -> None:
        """A call that costs something begins. Raises FrontendFull.

        when_over: takes a function that is called when the call is over, however that came.
        """
        if self._max_calls and self.num_calls >= self._max_calls:
            raise self._full("calls", self._calls)
        if 2 * self.num_calls <= self._max_calls:
            self._calls.forget()
        self.num_calls += 1
        when_over(self._leave)

    @contextmanager
    def reading(self, size: int) -> Iterator[None]:
        """A message of so many bytes is being read, within the block. Raises FrontendFull.

        One that is larger than the bound is read when no other is.
        """
        if self._max_bytes and self.num_bytes and self.num_bytes + size > self._max_bytes:
            raise self._full("bytes", self._readings)
        self.num_bytes += size
        try:
            yield
        finally:
            self.num_bytes -= size
            self._readings.freed(1, self._clock())

    def _leave(self, _: Any) -> None:
        self.num_calls -= 1
        self._calls.freed(1, self._clock())

    def _full(self, kind: str, comebacks: Comebacks) -> FrontendFull:
        self.refused[kind] += 1
        return FrontendFull(comebacks.promise(1, self._clock()))
