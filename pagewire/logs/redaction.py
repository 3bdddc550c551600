"""Keeps what clients send out of the log, and bounds the lines that clients can cause libraries to log."""

import asyncio
import logging
import time
import traceback
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

LIBRARIES = {"grpc": "gRPC", "uvicorn": "uvicorn"}
"""First part of the names of loggers -> how the log calls the library."""
LINES_PER_MINUTE = 24
"""Limit for the loggers of a library; a record with a traceback has many. A client that hangs up while it has
an answer of gRPC pending causes one each time, and so does each connection that sends uvicorn no HTTP."""
_WINDOW_S = 60.0


class LibraryLogFilter(logging.Filter):
    """Redacts and throttles records of the libraries' loggers; others pass unchanged.

    Bytes among the arguments are replaced by their number: they are a header that gRPC could not decode,
    perhaps a token.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._throttles = {root: _Throttle(name, clock) for root, name in LIBRARIES.items()}

    def filter(self, record: logging.LogRecord) -> bool:
        throttle = self._throttles.get(record.name.partition(".")[0])
        if throttle is None:
            return True
        if isinstance(record.args, tuple):
            record.args = tuple(
                f"<{len(each)} bytes>" if isinstance(each, bytes) else each for each in record.args
            )
        return throttle.has_room(record)


class _Throttle:
    """The lines of one library in this minute."""

    def __init__(self, library: str, clock: Callable[[], float]) -> None:
        self._library = library
        self._clock = clock
        self._window_end = 0.0
        self._num_passed = self._num_dropped = 0

    def has_room(self, record: logging.LogRecord) -> bool:
        """Returns whether a record is to be logged. The first of a minute tells how many were not."""
        now = self._clock()
        if now >= self._window_end:
            if self._num_dropped:
                dropped = f"{self._num_dropped} records of {self._library} were dropped before this one"
                record.msg = f"{record.msg} ({dropped})"
            self._window_end = now + _WINDOW_S
            self._num_passed = self._num_dropped = 0
        if self._num_passed >= LINES_PER_MINUTE:
            self._num_dropped += 1
            return False
        self._num_passed += _num_lines(record)
        return True


def _num_lines(record: logging.LogRecord) -> int:
    """Returns how many lines a record takes, its traceback included."""
    error = record.exc_info[1] if record.exc_info else None
    frames = len(traceback.extract_tb(error.__traceback__)) if error is not None else 0
    return str(record.msg).count("\n") + 1 + (2 + 2 * frames if error is not None else 0)


def traceback_of(error: BaseException) -> str:
    """Returns type and traceback of an exception without its text, which may quote a request."""
    frames = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    return f"{type(error).__qualname__}\n{frames}" if frames else type(error).__qualname__


def log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs an event loop's error; the default handler would log the text of the exception, too."""
    error = context.get("exception")
    place = traceback_of(error) if isinstance(error, BaseException) else "no exception"
    log.error("%s: %s", context.get("message", "the event loop met an error"), place)
