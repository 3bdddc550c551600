"""Rows of a step: where their tokens are, which states are saved, and what is drafted."""

import numpy as np
import pytest

from kernels.ops.states.spans import RowSpan, Saves, Spans

NOWHERE = Saves(0, 0, 0, 0)


def spans(*rows: tuple[int, int, int]) -> Spans:
    """(row, position of its first token, tokens)."""
    made = Spans.empty(len(rows))
    made.write(*(np.array(column) for column in zip(*rows, strict=True)))
    return made


def test_tokens_of_rows_follow_one_another():
    found = list(spans((4, 0, 6), (1, 30, 1), (7, 2, 3)))
    assert found == [
        RowSpan(4, 0, 6, 0, NOWHERE, 0, 6),
        RowSpan(1, 30, 1, 6, NOWHERE, 0, 1),
        RowSpan(7, 2, 3, 7, NOWHERE, 0, 3),
    ]
    assert len(Spans.empty(0)) == 0 and list(Spans.empty(0)) == []


def test_a_batch_that_is_used_again_remembers_nothing():
    """In the same memory: saves and drafts of the step before are gone."""
    made = spans((4, 0, 6), (1, 30, 1))
    made.save(4, 2, 9)
    made.draft(np.array([0, 1, 0, 0, 2]), np.array([0, 1, 0, 0, 3]))
    address = made.columns.ctypes.data
    made.write(np.array([4, 2]), np.array([6, 0]), np.array([1, 5]))
    assert list(made) == [RowSpan(4, 6, 1, 0, NOWHERE, 0, 1), RowSpan(2, 0, 5, 1, NOWHERE, 0, 5)]
    assert made.columns.ctypes.data == address and made.columns.flags.c_contiguous


def test_drafted_tokens_are_the_last_ones():
    """Numbers are those of all rows; a row's own are looked up."""
    made = spans((2, 10, 4), (0, 3, 1), (3, 0, 5))
    made.draft(drafted=np.array([0, 9, 3, 5]), replayed=np.array([2, 9, 1, 0]))
    assert [(span.row, span.certain, span.replayed) for span in made] == [(2, 1, 1), (0, 1, 2), (3, 0, 0)]


def test_states_are_saved_behind_positions():
    """Counted from a row's beginning; the step knows how many of its own tokens that are."""
    made = spans((5, 100, 20), (6, 0, 8))
    made.save(6, 8, 1)
    made.save(5, 101, 2)
    made.save(5, 120, 3)
    first, second = made
    assert first.saves == Saves(1, 2, 20, 3) and second.saves == Saves(8, 1, 0, 0)
    assert [first.targets(behind) for behind in (1, 2, 20)] == [(2,), (), (3,)]
    assert second.targets(8) == (1,) and second.targets(7) == ()


def test_one_place_saves_for_two_rows():
    made = spans((5, 0, 4))
    made.save(5, 4, 2)
    made.save(5, 4, 7)
    assert next(iter(made)).targets(4) == (2, 7)


@pytest.mark.parametrize("position", [99, 100, 121])
def test_what_the_step_does_not_compute_is_not_saved(position: int):
    with pytest.raises(AssertionError):
        spans((5, 100, 20)).save(5, position, 2)


def test_two_are_the_most():
    made = spans((5, 0, 9))
    made.save(5, 1, 2)
    made.save(5, 2, 3)
    with pytest.raises(AssertionError):
        made.save(5, 3, 4)


def test_a_row_that_is_not_there():
    with pytest.raises(ValueError, match="unpack"):
        spans((5, 0, 9)).save(6, 1, 2)
