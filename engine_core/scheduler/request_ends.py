"""Ends of requests: by their clients, by the clock, by a fault, and by their own last token.

Every end goes through SequenceStates.end(); what differs is whether the frontend is told, and how.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from types import TracebackType

from engine_core.request import FinishReason, Request, Sequence, Status
from engine_core.scheduler.states.sequence_states import SequenceStates
from pagewire.logs import about, traceback_of

log = logging.getLogger(__name__)


class RequestEnds:
    """Ends requests and sequences, and reports the reason where the frontend does not know it."""

    def __init__(self, states: SequenceStates) -> None:
        self._states = states

    def abort(self, request: Request, indexes: Collection[int] = ()) -> None:
        """Ends some sequences of a request (none named: all) without output."""
        if not request.num_live:
            return
        ended = self._states.groups[request].ended_by(indexes)
        for sequence in followers_first(request):
            if sequence.index in ended:
                self._states.end(sequence)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Ends a request, and reports the reason to its frontend."""
        if not request.num_live:
            return
        results = self._states.groups[request].results()
        if results is not None:
            self._states.outputs.finish_group(request, results, reason)
        for sequence in followers_first(request):
            if results is not None:
                self._states.end(sequence)
            else:
                self.finish_sequence(sequence, reason)

    def expire(self, now: float) -> None:
        """Ends requests at their time limit with the output so far, and aborts those past their deadline."""
        for request, has_time_limit in self._states.timeouts.due(now):
            if has_time_limit:
                self.finish(request, FinishReason.TIME_LIMIT)
            else:
                self.abort(request)

    def finish_sequence(self, sequence: Sequence, reason: FinishReason, token: int = 0) -> None:
        """Ends a sequence without another token, and reports it to its frontend."""
        if sequence.status is not Status.ENDED:
            self._states.outputs.finish(sequence, reason, token)
            self._states.end(sequence)


def followers_first(request: Request) -> list[Sequence]:
    """Returns the sequences in an order in which no sibling is promoted that is about to end as well."""
    return request.sequences[::-1]


class FaultIsolation:
    """Requests that ended by an exception, until their frontends are told.

    Used only where nothing but the request itself has been changed, so that what it holds can be freed. An
    exception in the middle of another change ends the engine; see quarantine/blame.py for what follows.
    """

    def __init__(self, abort: Callable[[Request], None]) -> None:
        """abort: ends a request and frees what it holds."""
        self._abort = abort
        self._requests: list[Request] = []

    def __bool__(self) -> bool:
        return bool(self._requests)

    def of(self, request: Request) -> AbstractContextManager[None, bool]:
        """Returns a context in which an exception ends this request."""
        return _Domain(request, self._end)

    def take(self) -> list[Request]:
        """Returns the requests since the last call."""
        requests, self._requests = self._requests, []
        return requests

    def _end(self, request: Request, error: Exception) -> None:
        with about(request_id=request.request_id, tenant=request.tenant, trace_id=request.trace_id):
            log.error("a request cannot be handled, and is ended: %s", traceback_of(error))
        self._abort(request)
        self._requests.append(request)


class _Domain(AbstractContextManager[None, bool]):
    """A class, since a generator takes three times as long."""

    __slots__ = ("_end", "_request")

    def __init__(self, request: Request, end: Callable[[Request, Exception], None]) -> None:
        self._request, self._end = request, end

    def __enter__(self) -> None: ...

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._end(self._request, error)
        return True
