"""One log format for every process."""

import io
import json
import logging
import os
import sys
from datetime import datetime, timedelta

import pytest

from pagewire import logs


@pytest.fixture(autouse=True)
def restored():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "start"), [(io.StringIO(), "2"), (Terminal(), "\r\x1b[K2")])
def test_lines_name_process_and_module(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, start: str):
    """On a terminal a line first clears what the supervisor's progress left there."""
    monkeypatch.setattr(sys, "stderr", stream)
    logs.setup("frontend", "info")
    logging.getLogger("frontend.server").info("listening on %s", "x")
    logging.getLogger("frontend.server").debug("not shown")
    (line,) = stream.getvalue().splitlines()[-1:]
    assert stream.getvalue().startswith(start)
    assert "INFO" in line and "frontend[" in line and line.endswith("frontend.server: listening on x")


def test_json_is_one_object_per_line(monkeypatch: pytest.MonkeyPatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    logs.setup("frontend-1", "info", "json")
    assert logs.writes_json()
    log = logging.getLogger("frontend.server")
    log.info("listening on %s\n", "\u00e9", extra={"request_id": "r", "trace_id": "t"})
    try:
        raise ValueError("x")
    except ValueError:
        log.exception("failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert datetime.fromisoformat(first.pop("time")).utcoffset() == timedelta(0)
    assert first == {
        "level": "info",
        "logger": "frontend.server",
        "message": "listening on \u00e9\n",
        "process": "frontend-1",
        "pid": os.getpid(),
        "request_id": "r",
        "trace_id": "t",
    }
    assert second["level"] == "error" and second["exception"].endswith("ValueError: x")


def test_text_is_not_json():
    logs.setup("frontend", "info")
    assert not logs.writes_json()
