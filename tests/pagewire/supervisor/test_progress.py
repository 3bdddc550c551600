"""Loading progress on terminals and in files."""

import contextlib
import io

import pytest

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
    assert stream.getvalue() == f"{clear}loading weights  25%{clear}loading weights 100%{clear}"


def test_a_file_gets_a_line_per_item():
    stream = io.StringIO()
    line = LoadingLine(stream)
    for fraction in (0.1, 0.2, 0.3):
        line.show("weights", fraction)
    line.show("kernels", 0.5)
    line.clear()
    assert stream.getvalue() == "loading weights  10%\nloading kernels  50%\n"


def test_a_full_disk_does_not_end_what_tells(capsys: pytest.CaptureFixture[str]) -> None:
    """/dev/full is as a file on one."""
    full = open("/dev/full", "w")  # noqa: SIM115  # closing it fails, too
    tell("ready", full)
    LoadingLine(full).show("weights", 0.5)
    with contextlib.suppress(OSError):
        full.close()
    tell("ready", None)
    assert capsys.readouterr().err == ""
