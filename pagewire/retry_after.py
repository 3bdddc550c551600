"""When to come back: for those that are refused because a place is taken, in a queue or in a process.

Places become free at some rate, which is measured. Each of them is promised once: whoever is refused next
is told the time of the next place. So clients that keep to it come back as fast as there is room for them,
and not all at once. Where there is plenty of room, nobody waits for what was promised any more: it is
forgotten. Plain Python: `now` is in seconds, on any one clock.
"""

from collections import deque

SOONEST_S, LATEST_S = 0.1, 60.0
"""Bounds of what somebody is told: by then, things may have changed."""
UNKNOWN_S = 1.0
"""What he is told as long as nothing has become free."""
_FURTHEST_S = 30.0
"""How far ahead places are promised: of clients that give up, nobody hears."""
_WINDOW_S = 10.0
_BUCKET_S = 0.5


class Rate:
    """Events per second over the last ten seconds, in buckets of half a second. Memory is bounded."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[float, int]] = deque()  # (start of the bucket, events)
        self._total = 0
        self._since: float | None = None  # start of the activity that the window has seen

    def add(self, events: int, now: float) -> None:
        """So many events happened just now."""
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
        """The rate; of a service that has just begun to work, over the time since then."""
        self._drop_old(now)
        if self._since is None:
            return 0.0
        return self._total / min(max(now - self._since, _BUCKET_S), _WINDOW_S)

    def _drop_old(self, now: float) -> None:
        while self._buckets and self._buckets[0][0] <= now - _WINDOW_S:
            self._total -= self._buckets.popleft()[1]
        if not self._buckets:
            self._since = None


class Comebacks:
    """The promises made to those that there was no room for."""

    def __init__(self) -> None:
        self._freed = Rate()
        self._promised = 0.0  # places that become free until then are promised to somebody

    def freed(self, places: int, now: float) -> None:
        """So many places have become free."""
        self._freed.add(places, now)

    def per_second(self, now: float) -> float:
        """Places that become free."""
        return self._freed.per_second(now)

    def promise(self, excess: float, now: float) -> float:
        """Seconds until there is room for one more. excess: places that must become free until then, if
        nobody else comes."""
        rate = self._freed.per_second(now)
        if not rate:
            return UNKNOWN_S
        self._promised = max(self._promised, now + (max(excess, 1.0) - 1) / rate)
        at = self._promised + 1 / rate
        self._promised = min(self._promised + 1 / rate, now + _FURTHEST_S)
        return min(max(at - now, SOONEST_S), LATEST_S)

    def forget(self) -> None:
        """There is plenty of room: nobody stands in line."""
        self._promised = 0.0
