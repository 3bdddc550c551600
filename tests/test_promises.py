"""docs/promises.md names every promise once, and tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/promises.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if re.match(r"\| R\d+ \|", line)
]


def test_every_promise_is_there_once():
    assert [row[0] for row in ROWS] == [f"R{number}" for number in range(1, 1 + len(ROWS))]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_promise_is_kept_by_tests_or_said_not_to_be(row: list[str]):
    _, promise, kept, tests, figure = row
    assert promise and kept in ("yes", "in part", "no")
    assert (kept == "no") == figure.startswith("not kept: ")
    assert bool(tests) == (kept != "no")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w/]+\.py)(?:::\w+)?`", PAGE))))
def test_what_is_named_exists(name: str):
    """Files are named by the end of their path."""
    assert any(path.match(name) for path in ROOT.glob("*/**/" + name.rpartition("/")[2]))
