"""Computes Retry-After for requests that are refused because a queue or a process is full.

The rate at which slots become free is measured, and each future slot is offered once: the next refused
request is told the time of the next slot. Clients that keep to it come back as fast as slots become free,
not all at once. While there is plenty of room, earlier offers are forgotten. Plain Python: `now` is in
seconds on any one clock.
"""

from collections import deque

SOONEST_S, LATEST_S = 0.1, 60.0
"""Bounds of a Retry-After: beyond the upper one the estimate means little."""
UNKNOWN_S = 1.0
"""Retry-After as long as no slot has become free."""
_FURTHEST_S = 30.0
"""How far ahead slots are offered: clients that give up do not say so."""
_WINDOW_S = 10.0
_BUCKET_S = 0.5


class Rate:
    """Events per second over the last ten seconds, in buckets of half a second. Memory is bounded."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[float, int]] = deque()  # (start of the bucket, events)
        self._total = 0
        self._since: float | None = None  # start of the activity that the window covers

    def add(self, events: int, now: float) -> None:
        """Counts events that happened at `now`."""
        self._drop_old(now)
        if self._since is None:
            self._since = now
        if self._buckets and now - self._buckets[-1][0] < _BUCKET_S:
            start, count = self._buckets[-1]
            self._buckets[-1] = start, count + events
        else:
            self._buckets.append((now, events))
        self._total += events

    def per_second(self, now: float) -> float:
        """Returns the rate; shortly after activity began, over the time since then."""
        self._drop_old(now)
        if self._since is None:
            return 0.0
        return self._total / min(max(now - self._since, _BUCKET_S), _WINDOW_S)

    def _drop_old(self, now: float) -> None:
        while self._buckets and self._buckets[0][0] <= now - _WINDOW_S:
            self._total -= self._buckets.popleft()[1]
        if not self._buckets:
            self._since = None


class RetryAfter:
    """Estimates when the next slot will be free, and spreads the clients that wait for one."""

    def __init__(self) -> None:
        self._freed = Rate()
        self._offered = 0.0  # slots that become free until then have been offered

    def freed(self, slots: int, now: float) -> None:
        """Counts slots that became free."""
        self._freed.add(slots, now)

    def per_second(self, now: float) -> float:
        return self._freed.per_second(now)

    def offer(self, excess: float, now: float) -> float:
        """Offers the next free slot: returns the seconds until then. excess: slots that must become free
        before there is room for one more, if nothing else arrives."""
        rate = self._freed.per_second(now)
        if not rate:
            return UNKNOWN_S
        self._offered = max(self._offered, now + (max(excess, 1.0) - 1) / rate)
        at = self._offered + 1 / rate
        self._offered = min(self._offered + 1 / rate, now + _FURTHEST_S)
        return min(max(at - now, SOONEST_S), LATEST_S)

    def forget(self) -> None:
        """Forgets earlier offers: there is plenty of room."""
        self._offered = 0.0
