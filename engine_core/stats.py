"""Figures about the core: rates lately, and counts of what should not happen."""

from collections import deque
from dataclasses import dataclass

_WINDOW_S = 10.0
_BUCKET_S = 0.5
_QUERIES = 1000


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


class HitRate:
    """Tokens found over tokens asked for, of the last thousand queries."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, int]] = deque()  # (asked, found)
        self._asked = self._found = 0

    def add(self, asked: int, found: int) -> None:
        """One query."""
        self._last.append((asked, found))
        self._asked += asked
        self._found += found
        if len(self._last) > _QUERIES:
            asked, found = self._last.popleft()
            self._asked -= asked
            self._found -= found

    @property
    def ratio(self) -> float:
        """0 to 1; 0 before the first query."""
        return self._found / self._asked if self._asked else 0.0


@dataclass(slots=True)
class Counters:
    """What should not happen, counted since the start."""

    bad_messages: int = 0  # from frontends: well-formed, but against the contract
    internal_errors: int = 0  # exceptions while handling one message
    broken_invariants: int = 0
