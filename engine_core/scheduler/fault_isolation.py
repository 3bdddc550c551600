"""The fault domain of one request: a bug that shows while one is looked at ends it, and nobody else.

Only where nothing has been changed yet, or nothing but a beam search that ends with it: so what a request
holds can be taken back. A bug in the middle of another change is the engine's end; see suspects.py for what
follows.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from engine_core.request import Request
from pagewire.log_redaction import traceback_of

log = logging.getLogger(__name__)


class Faults:
    """Requests that have ended so, until their frontends are told."""

    def __init__(self, abort: Callable[[Request], None]) -> None:
        """abort: takes back what a request holds."""
        self._abort = abort
        self._requests: list[Request] = []

    def __bool__(self) -> bool:
        return bool(self._requests)

    def of(self, request: Request) -> AbstractContextManager[None, bool]:
        """What is raised within the block ends this request."""
        return _Domain(request, self._end)

    def take(self) -> list[Request]:
        """Those since the last call."""
        requests, self._requests = self._requests, []
        return requests

    def _end(self, request: Request, error: Exception) -> None:
        log.error("a request cannot be handled, and is ended: %s", traceback_of(error))
        self._abort(request)
        self._requests.append(request)


class _Domain(AbstractContextManager[None, bool]):
    """As a class: a generator would take three times as long."""

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
