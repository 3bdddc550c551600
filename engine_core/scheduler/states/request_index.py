"""The requests in flight: by each of their names, and by the time at which they end."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

from engine_core.request import Request

_COMPACT_ABOVE = 64


class RequestIndex:
    """Requests by (frontend, handle), by public id and by group. All operations but iteration are O(1)."""

    def __init__(self) -> None:
        self._by_id: dict[str, Request] = {}
        self._by_frontend: dict[bytes, dict[int, Request]] = {}
        self._of_tenants: dict[str, tuple[int, int]] = {}  # requests, and their sequences
        self._by_group: dict[str, dict[str, Request]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._by_id.values())

    def add(self, request: Request) -> None:
        """Adds a request; the caller has checked that neither of its names is in use."""
        assert request.request_id not in self._by_id
        self._by_id[request.request_id] = request
        self._by_frontend.setdefault(request.frontend, {})[request.handle] = request
        if request.group:
            self._by_group.setdefault(request.group, {})[request.request_id] = request
        self._count(request, 1)

    def remove(self, request: Request) -> None:
        """Removes a request that has ended."""
        del self._by_id[request.request_id]
        self._drop_handle(request)
        if request.group:
            group = self._by_group[request.group]
            del group[request.request_id]
            if not group:
                del self._by_group[request.group]
        self._count(request, -1)

    def move(self, request: Request, frontend: bytes, handle: int) -> None:
        """Gives a request to another frontend, or another handle; the caller has checked that it is free."""
        self._drop_handle(request)
        request.frontend, request.handle = frontend, handle
        self._by_frontend.setdefault(frontend, {})[handle] = request

    def tenants(self) -> list[str]:
        """Returns the tenants that have requests."""
        return list(self._of_tenants)

    def num_of_tenant(self, tenant: str) -> int:
        """Number of requests of a tenant."""
        return self._of_tenants.get(tenant, (0, 0))[0]

    def num_sequences_of_tenant(self, tenant: str) -> int:
        """Number of sequences of a tenant's requests; one that has ended counts until its request has."""
        return self._of_tenants.get(tenant, (0, 0))[1]

    def by_id(self, request_id: str) -> Request | None:
        """Returns the request with this public id."""
        return self._by_id.get(request_id)

    def named(self, name: str) -> list[Request]:
        """Returns the requests that a public id names: the one that has it, and those of the group."""
        request = self._by_id.get(name)
        return [*([request] if request else []), *self._by_group.get(name, {}).values()]

    def by_handle(self, frontend: bytes, handle: int) -> Request | None:
        """Returns the request to which this frontend gave the handle."""
        return self._by_frontend.get(frontend, {}).get(handle)

    def of_frontend(self, frontend: bytes) -> list[Request]:
        """Returns all requests of a frontend."""
        return list(self._by_frontend.get(frontend, {}).values())

    def _drop_handle(self, request: Request) -> None:
        of_frontend = self._by_frontend[request.frontend]
        del of_frontend[request.handle]
        if not of_frontend:
            del self._by_frontend[request.frontend]

    def _count(self, request: Request, change: int) -> None:
        requests, sequences = self._of_tenants.get(request.tenant, (0, 0))
        counts = requests + change, sequences + change * len(request.sequences)
        if counts[0]:
            self._of_tenants[request.tenant] = counts
        else:
            del self._of_tenants[request.tenant]


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
