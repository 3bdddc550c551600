"""Drafts that are looked up in the row."""

import numpy as np
import pytest

from worker.speculation.lookup import LookupDrafter
from worker.step.rows import RowTable


@pytest.fixture
def rows() -> RowTable:
    return RowTable(4, 200, 1000, 4, 100)


def put(rows: RowTable, row: int, tokens: list[int]) -> None:
    rows.token_ids[row, : len(tokens)] = tokens
    rows.num_tokens[row] = len(tokens)


def test_what_followed_before(rows: RowTable) -> None:
    drafter = LookupDrafter(rows)
    put(rows, 1, [1, 2, 3, 4, 5, 6, 9, 2, 3])
    put(rows, 2, [2, 3])
    assert drafter.draft([1], [2]) == [[4, 5]] and drafter.draft([1], [3]) == [[4, 5, 6]]
    assert drafter.draft([2], [3]) == [[]], "rows do not share"
    rows.append(np.array([1]), np.array([4]))
    assert drafter.draft([1], [2]) == [[5, 6]]
    rows.append(np.array([1]), np.array([8]))
    assert drafter.draft([1], [2]) == [[]]


@pytest.mark.parametrize("period", [1, 2, 3, 5])
def test_what_repeats_goes_on(rows: RowTable, period: int) -> None:
    text = (list(range(10, 10 + period)) * 20)[:23]
    put(rows, 0, text)
    drafted = LookupDrafter(rows).draft([0], [12])
    assert drafted == [[10 + place % period for place in range(23, 35)]]


def test_a_row_that_begins_again(rows: RowTable) -> None:
    drafter = LookupDrafter(rows)
    put(rows, 0, [1, 2, 3, 4, 1, 2])
    assert drafter.draft([0], [1]) == [[3]]
    drafter.remove_row(0)
    put(rows, 0, [5, 6, 7, 1, 2])
    assert drafter.draft([0], [1]) == [[]]
    drafter.remove_row(3)
