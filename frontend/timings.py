"""Where a request's time goes: a ledger whose parts sum to the total, to the nanosecond."""

import time

from pagewire.v1 import generation_pb2


class Ledger:
    """Moments of one request, by the monotonic clock. A part that never began has no length."""

    __slots__ = ("_arrival", "_sent", "_queue", "_first", "_last")

    def __init__(self) -> None:
        """The request arrives now."""
        self._arrival = time.monotonic_ns()
        self._sent: int | None = None
        self._queue: int | None = None
        self._first: int | None = None
        self._last = self._arrival

    def seconds(self) -> float:
        """Since the arrival."""
        return (time.monotonic_ns() - self._arrival) / 1e9

    def sent(self) -> None:
        """The request goes to the core now."""
        self._sent = self._last = time.monotonic_ns()

    def started(self, queue_us: int) -> None:
        """The core says how long the request waited there."""
        if self._queue is None:
            self._queue = queue_us * 1000

    def progressed(self, now: int, *, tokens: bool) -> None:
        """Tokens, or an end without one, came at `now` (time.monotonic_ns())."""
        if tokens and self._first is None:
            self._first = now
        self._last = now

    def timings(self) -> generation_pb2.Timings:
        """The parts so far. Without a token, all the time since sending is queue, then prefill."""
        first = self._last if self._first is None else self._first
        sent = first if self._sent is None else self._sent
        wait = first - sent
        queue = wait if self._queue is None else min(self._queue, wait)
        parts = {
            "preprocess": sent - self._arrival,
            "queue": queue,
            "prefill": wait - queue,
            "decode": self._last - first,
            "total": self._last - self._arrival,
        }
        timings = generation_pb2.Timings()
        for name, nanoseconds in parts.items():
            getattr(timings, name).FromNanoseconds(nanoseconds)
        return timings
