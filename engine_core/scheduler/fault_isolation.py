"""Fault isolation per request: an exception while one request is handled ends that request alone.

Used only where nothing but the request itself has been changed, so that what it holds can be freed. An
exception in the middle of another change ends the engine; see quarantine/blame.py for what follows.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from engine_core.request import Request
from pagewire.logs.fields import about
from pagewire.logs.redaction import traceback_of

log = logging.getLogger(__name__)


class FaultIsolation:
    """Requests that ended by an exception, until their frontends are told."""

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
