"""Keeps what clients send out of the log, and bounds the lines that clients can cause gRPC to log."""

import asyncio
import logging
import time
import traceback
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

GRPC_LINES_PER_MINUTE = 10
"""Records of gRPC's own loggers, some with a traceback of many lines. A client that hangs up while it has an
answer pending causes one each time."""
_WINDOW_S = 60.0


class GrpcLogFilter(logging.Filter):
    """Redacts and throttles records of gRPC's loggers; others pass unchanged.

    Bytes among the arguments are replaced by their number: they are a header that gRPC could not decode,
    perhaps a token.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._window_end = 0.0
        self._num_passed = self._num_dropped = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith("grpc"):
            return True
        if isinstance(record.args, tuple):
            record.args = tuple(
                f"<{len(each)} bytes>" if isinstance(each, bytes) else each for each in record.args
            )
        return self._has_room(record)

    def _has_room(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        if now >= self._window_end:
            if self._num_dropped:
                record.msg = f"{record.msg} ({self._num_dropped} lines of gRPC were dropped before this one)"
            self._window_end = now + _WINDOW_S
            self._num_passed = self._num_dropped = 0
        if self._num_passed >= GRPC_LINES_PER_MINUTE:
            self._num_dropped += 1
            return False
        self._num_passed += 1
        return True


def traceback_of(error: BaseException) -> str:
    """Returns type and traceback of an exception without its text, which may quote a request."""
    frames = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    return f"{type(error).__qualname__}\n{frames}" if frames else type(error).__qualname__


def log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs an event loop's error; the default handler would log the text of the exception, too."""
    error = context.get("exception")
    place = traceback_of(error) if isinstance(error, BaseException) else "no exception"
    log.error("%s: %s", context.get("message", "the event loop met an error"), place)
