"""Logs: one format for every process, on standard error. Prompts and outputs are never logged.

Lines are text, or JSON objects with `time`, `level`, `logger`, `message`, `process`, `pid`, and, where a line
belongs to a request, `request_id`, `tenant` and `trace_id`. These fields live in a context variable, so that
a line that is logged anywhere in a request's task has them. Code that handles many requests in one task names
the request of a line with about(). What clients send is kept out of the lines of libraries, whose number is
bounded.
"""

import asyncio
import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s {process} %(name)s: %(fields)s%(message)s"
_CLEAR_LINE = "\r\x1b[K"
_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes of every record; all others come from `extra`."""


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def __init__(self, process_name: str) -> None:
        super().__init__()
        self._process_name = process_name

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, object] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": self._process_name,
            "pid": os.getpid(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _KNOWN}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Formats a record as text, with the fields of its request before the message."""

    def format(self, record: logging.LogRecord) -> str:
        vars(record)["fields"] = in_text(record)
        return super().format(record)


def setup(process_name: str, level: str, format: str = "text") -> None:
    """Sends the log of this process to standard error.

    process_name: such as "frontend"; printed with the process id, since all processes share a terminal.
    level: "debug", "info", "warning" or "error". format: "text" or "json".
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process_name) if format == "json" else _text(process_name))
    handler.addFilter(LibraryLogFilter())
    handler.addFilter(RequestFieldsFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)


def writes_json() -> bool:
    """True if the log is JSON: then nothing else may be written to standard error."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def _text(process_name: str) -> TextFormatter:
    line = _FORMAT.format(process=f"{process_name}[%(process)d]")  # of a fork, its own
    if sys.stderr.isatty():
        line = _CLEAR_LINE + line  # the supervisor may be showing progress on this line
    return TextFormatter(line, datefmt="%Y-%m-%d %H:%M:%S")


FIELDS = ("request_id", "tenant", "trace_id")
"""Fields of the request that a line belongs to, in this order."""
_NONE: Mapping[str, str] = {}
_current: ContextVar[Mapping[str, str]] = ContextVar("log_fields", default=_NONE)
_PLAIN = re.compile(r"[A-Za-z0-9._#/:@-]+")


def put_fields(
    *, request_id: str | None = None, tenant: str | None = None, trace_id: str | None = None
) -> None:
    """Adds fields to the lines of the current task from here on. None: as it was. "": none."""
    given = {"request_id": request_id, "tenant": tenant, "trace_id": trace_id}
    _current.set({**_current.get(), **{name: value for name, value in given.items() if value is not None}})


@contextmanager
def about(*, request_id: str, tenant: str = "", trace_id: str = "") -> Iterator[None]:
    """Gives the lines within the block these fields and no others. request_id: the client's, or an engine's,
    which begins with the tenant."""
    own = request_id.removeprefix(f"{tenant}/") if tenant else request_id
    token = _current.set({"request_id": own, "tenant": tenant, "trace_id": trace_id})
    try:
        yield
    finally:
        _current.reset(token)


class RequestFieldsFilter(logging.Filter):
    """Writes the fields into each record; those of its own `extra` stay."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Drops nothing."""
        for name, value in _current.get().items():
            if value and not hasattr(record, name):
                setattr(record, name, value)
        return True


def quoted(value: str) -> str:
    """Returns the value of a field as a line of text shows it: quoted where it could be taken for more."""
    return value if _PLAIN.fullmatch(value) else ascii(value)


def in_text(record: logging.LogRecord) -> str:
    """Returns a record's fields for a line of text, such as "[request_id=x tenant=a] "; "": it has none.

    Clients choose request ids: one that could be taken for another field is quoted.
    """
    found = [(name, str(getattr(record, name))) for name in FIELDS if getattr(record, name, None)]
    if not found:
        return ""
    shown = (f"{name}={quoted(value)}" for name, value in found)
    return f"[{' '.join(shown)}] "


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
