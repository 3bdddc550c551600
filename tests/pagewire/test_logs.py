"""One log format for every process."""

import contextvars
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


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_fork_logs_its_own_process_id(monkeypatch: pytest.MonkeyPatch, format: str):
    """Also where the log was set up before the fork, as in processes that a standby forks."""
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    logs.setup("frontend", "info", format)
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    logging.getLogger("x").info("ready")
    assert ("frontend[4711]" if format == "text" else '"pid": 4711') in stream.getvalue()


def test_text_is_not_json():
    logs.setup("frontend", "info")
    assert not logs.writes_json()


@pytest.mark.parametrize("format", ["text", "json"])
def test_lines_name_their_request(monkeypatch: pytest.MonkeyPatch, format: str):
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    logs.setup("frontend", "info", format)
    log, trace = logging.getLogger("x"), "4bf92f3577b34da6a3ce929d0e0e4736"

    def handle() -> None:
        logs.put_fields(tenant="alice", trace_id=trace)
        log.info("known: the caller")
        logs.put_fields(request_id="r1")
        log.info("known: the request")
        with logs.about(request_id="bob/r 2] tenant=admin", tenant="bob"):
            log.info("of another")
        log.info("ends")

    contextvars.copy_context().run(handle)
    log.info("of none")
    lines = stream.getvalue().splitlines()
    if format == "json":
        names = [tuple(json.loads(line).get(name) for name in logs.FIELDS) for line in lines]
        assert names == [
            (None, "alice", trace),
            ("r1", "alice", trace),
            ("r 2] tenant=admin", "bob", None),
            ("r1", "alice", trace),
            (None, None, None),
        ]
    else:
        assert lines[0].endswith(f"x: [tenant=alice trace_id={trace}] known: the caller")
        assert lines[1].endswith(f"x: [request_id=r1 tenant=alice trace_id={trace}] known: the request")
        assert lines[2].endswith("x: [request_id='r 2] tenant=admin' tenant=bob] of another")
        assert lines[4].endswith("x: of none")
