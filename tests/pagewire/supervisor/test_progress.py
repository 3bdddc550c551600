"""Loading progress on terminals and in files."""

import contextlib
import io

import pytest

from pagewire.supervisor import notices
from pagewire.supervisor.notices import LoadingLine, tell


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_line_that_is_erased():
    stream = Terminal()
    line = LoadingLine(stream)
    line.clear()
    assert stream.getvalue() == "", "there is nothing to erase"
    line.show("weights", 0.25)
    line.show("weights", 1.0)
    line.clear()
    clear = "\r\x1b[K"
    quarter, full = "#" * 7 + " " * 23, "#" * 30
    begin = f"{clear}loading weights           "
    assert stream.getvalue() == f"{begin}[{quarter}]  25%{begin}[{full}] 100%{clear}"


def test_a_file_gets_a_line_per_item():
    stream = io.StringIO()
    line = LoadingLine(stream)
    for fraction in (0.1, 0.2, 0.3):
        line.show("weights", fraction)
    line.show("kernels", 0.5)
    line.clear()
    assert stream.getvalue() == "loading weights\nloading kernels\n"


def test_a_file_gets_a_line_of_a_slow_item(monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr(notices.time, "monotonic", lambda: now)
    stream = io.StringIO()
    line = LoadingLine(stream)
    for now in (1.0, 2.0, 7.0, 8.0):
        line.show("kernels", now / 10)
    assert stream.getvalue() == "loading kernels\nloading kernels  70%\n"


def test_a_full_disk_does_not_end_what_tells(capsys: pytest.CaptureFixture[str]) -> None:
    """/dev/full is as a file on one."""
    full = open("/dev/full", "w")  # noqa: SIM115  # closing it fails, too
    tell("ready", full)
    LoadingLine(full).show("weights", 0.5)
    with contextlib.suppress(OSError):
        full.close()
    tell("ready", None)
    assert capsys.readouterr().err == ""
