"""Requests that end at a time limit or a deadline."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

from engine_core.request import Request

_COMPACT_ABOVE = 64


class Timeouts:
    """A heap of (time, request), one entry for each request that has a time limit or a deadline.

    Entries of ended requests are dropped when they reach the top, or together once they are the majority, so
    that the heap never holds more than twice the requests in flight.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._numbers = count()  # breaks ties in order of arrival
        self._num_stale = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Adds a request."""
        if (when := _first(request)) is not None:
            heapq.heappush(self._heap, (when, next(self._numbers), request))

    def remove(self, request: Request) -> None:
        """Removes a request that has ended (num_live is 0)."""
        if _first(request) is not None:
            self._drop_one()

    def set_deadline(self, request: Request, deadline_at: float | None) -> None:
        """Gives a live request another deadline."""
        before = _first(request)
        request.owner.abort_at = deadline_at
        if _first(request) != before:
            if before is not None:
                self._drop_one()
            self.add(request)

    def due(self, now: float) -> Iterator[tuple[Request, bool]]:
        """Yields requests whose time has come, and whether it is the time limit (else the deadline).

        The caller ends each of them, which calls remove().
        """
        while self._heap and self._heap[0][0] <= now:
            when, _, request = heapq.heappop(self._heap)
            self._num_stale -= 1
            if request.num_live and when == _first(request):
                yield request, when == request.time_limit_at

    def _drop_one(self) -> None:
        """Counts an entry that is not valid any more, and drops all of these once they are the majority."""
        self._num_stale += 1
        if self._num_stale > _COMPACT_ABOVE and 2 * self._num_stale > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].num_live and entry[0] == _first(entry[2])]
            heapq.heapify(self._heap)
            self._num_stale = 0


def _first(request: Request) -> float | None:
    times = [when for when in (request.time_limit_at, request.owner.abort_at) if when is not None]
    return min(times, default=None)
