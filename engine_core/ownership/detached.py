"""Requests that no call has: the client, its connection or its frontend is gone.

A request whose client chose its id, and so may submit it again, goes on for a grace. A submit of the same id
and content takes it over in that time; a cancelled call looks like a broken connection, so it has the grace,
too. What ends within the grace is kept until its end. A tenant has a bounded number of such requests; they
count for its quotas like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from math import inf
from typing import NamedTuple

from engine_core.context import NOWHERE, CoreContext
from engine_core.request import Request, Sequence

MOST_PER_TENANT = 64
"""Detached requests of one tenant; one more that its client has left ends the oldest. (A frontend that dies
leaves as many as it had.)"""


class _Detached(NamedTuple):
    request: Request
    sequences: tuple[Sequence, ...]  # which the request does not hold any more once it has ended
    until: float  # seconds on the core's clock
    is_refunded: bool


class DetachedRequests:
    """The detached requests of a core, also those that have ended since."""

    def __init__(self, context: CoreContext, refund: Callable[[Request], None]) -> None:
        """refund: takes a request that ended through no fault of its tenant."""
        self._scheduler = context.scheduler
        self._clock = context.clock
        self._refund = refund
        self._by_id: dict[str, _Detached] = {}
        self._of_tenants: dict[str, dict[str, None]] = {}  # ids, the oldest first
        self._handles = count(1)
        self._next_end = inf

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, request_id: str) -> Request | None:
        """Returns the detached request with this id, with its sequences."""
        detached = self._by_id.get(request_id)
        if detached is None:
            return None
        if not detached.request.num_live:
            detached.request.sequences[:] = detached.sequences
        return detached.request

    def detach(self, request: Request, *, is_refunded: bool = False) -> None:
        """Takes a request in flight from its frontend; it ends after its grace, or at once if it has none.

        is_refunded: its tenant need not pay twice for it; the frontend is gone, not the client.
        """
        if not (request.owner.disconnect_grace and request.owner.content):
            self._end(_Detached(request, (), 0.0, is_refunded))
            return
        self._scheduler.requests.move(request, NOWHERE, next(self._handles))
        until = self._clock() + request.owner.disconnect_grace
        self._by_id[request.request_id] = _Detached(request, tuple(request.sequences), until, is_refunded)
        self._next_end = min(self._next_end, until)
        of_tenant = self._of_tenants.setdefault(request.tenant, {})
        of_tenant[request.request_id] = None
        if len(of_tenant) > MOST_PER_TENANT and not is_refunded:
            self.end(self._by_id[next(iter(of_tenant))].request)

    def attach(self, request: Request, frontend: bytes, handle: int) -> None:
        """Gives a detached request to a call. One that has ended is to be dropped with its sequences."""
        self._forget(request)
        if request.num_live:
            self._scheduler.requests.move(request, frontend, handle)
        request.frontend, request.handle = frontend, handle

    def end(self, request: Request) -> None:
        """Ends a detached request."""
        self._end(self._forget(request))

    def review(self) -> None:
        """Ends requests whose grace is over. To be called in every step."""
        if self._next_end == inf or (now := self._clock()) < self._next_end:
            return
        for detached in [each for each in self._by_id.values() if each.until <= now]:
            self.end(detached.request)
        self._next_end = min((each.until for each in self._by_id.values()), default=inf)

    def _forget(self, request: Request) -> _Detached:
        of_tenant = self._of_tenants[request.tenant]
        del of_tenant[request.request_id]
        if not of_tenant:
            del self._of_tenants[request.tenant]
        return self._by_id.pop(request.request_id)

    def _end(self, detached: _Detached) -> None:
        if detached.request.num_live:
            self._scheduler.abort(detached.request)
        detached.request.sequences.clear()
        if detached.is_refunded:
            self._refund(detached.request)
