"""Log setup: one format for every process, on standard error. Prompts and outputs are never logged.

Lines are text, or JSON objects with `time`, `level`, `logger`, `message`, `process`, `pid`, and, where a line
belongs to a request, `request_id`, `tenant` and `trace_id` (pagewire.logs.fields)."""

import json
import logging
import os
import sys
from datetime import UTC, datetime

from pagewire.logs.fields import RequestFieldsFilter, in_text
from pagewire.logs.redaction import LibraryLogFilter

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
    line = _FORMAT.format(process=f"{process_name}[{os.getpid()}]")
    if sys.stderr.isatty():
        line = _CLEAR_LINE + line  # the supervisor may be showing progress on this line
    return TextFormatter(line, datefmt="%Y-%m-%d %H:%M:%S")
