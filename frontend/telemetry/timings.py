"""Where a request's time goes: phases that sum to the total, to the nanosecond."""

import time

from frontend.telemetry.counters import Counters
from pagewire.v1 import generation_pb2


class RequestTimings:
    """Timestamps of one request, on the monotonic clock. A phase that never began has length 0."""

    __slots__ = ("num_messages", "_arrival", "_counters", "_first", "_last", "_queue", "_sent", "_told")

    def __init__(self, counters: Counters | None = None) -> None:
        """Starts now, at the request's arrival. counters: of the process."""
        self.num_messages = 0
        """Messages sent to the client."""
        self._counters = counters or Counters()
        self._told = 0  # arrival of the last token in them
        self._arrival = time.monotonic_ns()
        self._sent: int | None = None
        self._queue: int | None = None
        self._first: int | None = None
        self._last = self._arrival

    def seconds(self) -> float:
        """Returns the seconds since arrival."""
        return (time.monotonic_ns() - self._arrival) / 1e9

    def sent(self) -> None:
        """Marks the submission to the core."""
        self._sent = self._last = time.monotonic_ns()

    def started(self, queue_us: int) -> None:
        """Records how long the request waited in the core's queue."""
        if self._queue is None:
            self._queue = queue_us * 1000

    def progressed(self, now: int, *, tokens: bool) -> None:
        """Marks the arrival of tokens, or of an end without tokens, at `now` (time.monotonic_ns())."""
        if tokens and self._first is None:
            self._first = now
        self._last = now

    def told(self, num_tokens: int, num_sequences: int) -> None:
        """Records a message to the client, with its new tokens and the number of their sequences."""
        counters, last = self._counters, self._last
        counters.messages += 1
        counters.generated_tokens += num_tokens
        if self.num_messages and num_tokens:
            steps = max(num_tokens // num_sequences, 1)
            counters.inter_token_seconds.observe((last - self._told) * 1e-9 / steps, num_tokens)
        self.num_messages += 1
        self._told = last

    @property
    def has_tokens(self) -> bool:
        """True when a token has arrived."""
        return self._first is not None

    def parts(self) -> dict[str, int]:
        """Returns the phases in nanoseconds. Without a token, the time since submission is queue, then
        prefill."""
        first = self._last if self._first is None else self._first
        sent = first if self._sent is None else self._sent
        wait = first - sent
        queue = wait if self._queue is None else min(self._queue, wait)
        return {
            "preprocess": sent - self._arrival,
            "queue": queue,
            "prefill": wait - queue,
            "decode": self._last - first,
            "total": self._last - self._arrival,
        }

    def timings(self) -> generation_pb2.Timings:
        """Returns the phases as a message for the client."""
        timings = generation_pb2.Timings()
        for name, nanoseconds in self.parts().items():
            getattr(timings, name).FromNanoseconds(nanoseconds)
        return timings
