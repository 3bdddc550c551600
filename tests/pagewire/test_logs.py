"""One log format for every process."""

import io
import logging
import sys

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
