"""A check of the checker: bugs that are made on purpose are found, each within a bounded number of seeds."""

import pytest

from tests.simulation.mutants import MAX_SEEDS, MUTANTS, find


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_bug_is_found(mutant: str) -> None:
    failure = find(mutant)
    assert failure is not None, f"no seed below {MAX_SEEDS} finds it"
