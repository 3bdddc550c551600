"""The list of thorough tests names tests that exist, and no test is in neither part."""

from pathlib import Path

import pytest

from tests.parts import Entry, entries, thorough

ROOT = Path(__file__).parents[1]
CASES = [f"tests/a/test_b.py::test_c[{number}]" for number in range(10)]


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.tests)
def test_what_is_listed_exists(entry: Entry) -> None:
    path, _, test = entry.tests.partition("::")
    assert (ROOT / path).exists()
    assert not test or test in (ROOT / path).read_text(encoding="utf-8")


def test_cases_that_stay_are_spread_evenly() -> None:
    entry = Entry("tests/a", "slow", cases=3)
    assert [name for name in CASES if name not in thorough(CASES, [entry])] == [CASES[0], CASES[3], CASES[6]]
    assert thorough(CASES[:2], [entry]) == set()


def test_cases_that_are_kept_by_name() -> None:
    entry = Entry("tests/a/test_b.py", "slow", keep=("test_c[7]",))
    assert thorough(CASES, [entry]) == {*CASES} - {CASES[7]}


def test_the_longest_beginning_counts() -> None:
    listed = [
        Entry("tests/a/test_b.py::test_c", "slow", cases=1),
        Entry("tests/a", "slow", keep=("::test_d",)),
    ]
    names = [*CASES, "tests/a/test_b.py::test_d", "tests/a/test_b.py::test_cd", "tests/ab/test_b.py::test_c"]
    assert thorough(names, listed) == {*CASES[1:], "tests/a/test_b.py::test_cd"}
