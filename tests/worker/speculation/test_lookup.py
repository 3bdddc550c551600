"""Drafts that are looked up in the row."""

import numpy as np
import pytest

from worker.speculation import lookup
from worker.speculation.lookup import LookupDrafter, NgramIndex, Read
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


class CountingIndex(NgramIndex):
    """Notes when it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def extend(self, end: int, read: Read) -> None:
        """See NgramIndex."""
        self.asked.append(end)
        super().extend(end, read)


def test_a_row_in_which_nothing_repeats_is_looked_up_at_every_eighth_token(
    rows: RowTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "REST_BEGINS", 8)
    index = CountingIndex()
    monkeypatch.setattr(lookup, "NgramIndex", lambda: index)
    drafter = LookupDrafter(rows)
    put(rows, 0, [1])
    for token in range(2, 100):
        assert drafter.draft([0], [3]) == [[]]
        rows.append(np.array([0]), np.array([token]))
    steps = np.diff(index.asked)
    assert index.asked[:8] == list(range(1, 9)) and steps.max() == 8 and (np.diff(steps) >= 0).all()


def test_what_begins_to_repeat_is_found_within_eight_tokens(
    rows: RowTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "REST_BEGINS", 8)
    drafter = LookupDrafter(rows)
    put(rows, 0, [1])
    for token in range(2, 100):
        drafter.draft([0], [3])
        rows.append(np.array([0]), np.array([token]))
    found = []
    for token in range(20, 40):
        rows.append(np.array([0]), np.array([token]))
        found.append(drafter.draft([0], [3])[0])
    first = next(place for place, draft in enumerate(found) if draft)
    assert first <= 9 and found[first:] == [[t + 1, t + 2, t + 3] for t in range(20 + first, 40)]
