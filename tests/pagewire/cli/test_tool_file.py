"""`pagewire chat --tools FILE`: which functions a file has."""

from pathlib import Path

import pytest

from pagewire.cli.chat import functions_in
from pagewire.flags import UsageError
from pagewire_client.tools import to_tool

GOOD = '''
from json import dumps
from pagewire import tool

def now() -> str:
    """The time."""
    return _format(12)

@tool(strict=True)
def later(hours: int) -> str:
    return _format(12 + hours)

def _format(hour: int) -> str:
    return dumps(hour)
'''


def test_public_functions_of_the_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text(GOOD)
    now, later = functions_in(str(file))
    assert now.__name__ == "now" and now() == "12"
    assert to_tool(later).strict and later(3) == "15"
    assert functions_in("") == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = 1", "defines no public function"),
        ("def f(", "was never closed"),
        ("def f(a): ...", "parameter 'a' has no annotation"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "tools.py"
    file.write_text(text)
    with pytest.raises(UsageError, match=problem):
        functions_in(str(file))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        functions_in(str(tmp_path / "none.py"))
