"""Every bug can still be made, and its tests are there. Whether these find it: make mutants."""

import ast
from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]


def test_there_are_as_many_as_were_promised():
    assert len(MUTANTS) >= 40
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_can_be_made(mutant: Mutant):
    """A change of these lines moves the bug along: the same mistake, in the new code."""
    source = mutant.mutated(ROOT)
    assert source != (ROOT / mutant.file).read_text(encoding="utf-8")
    ast.parse(source)
    for test in mutant.tests:
        assert (ROOT / test.partition("::")[0]).exists(), f"there is no {test}"


def test_a_bug_whose_place_has_changed_is_named():
    gone = Mutant(name="x", file="README.md", old="not in there", new="", tests=())
    with pytest.raises(ValueError, match=r"x: what it replaces stands 0 times in README.md"):
        gone.mutated(ROOT)
