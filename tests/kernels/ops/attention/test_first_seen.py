"""Where the positions that a query sees begin and end, against a count of those that it sees."""

import numpy as np
import pytest

from kernels.ops.attention.gather_plan import first_seen, last_seen


@pytest.mark.parametrize("window", [None, 1, 3, 8, 100])
@pytest.mark.parametrize("chunked", [False, True])
def test_positions_that_are_seen(window: int | None, chunked: bool):
    """All, the last ones with the query itself, or those of its chunk."""
    positions = np.arange(20)
    for position, first in zip(positions, first_seen(positions, window, chunked), strict=True):
        seen = [
            other
            for other in range(position + 1)
            if window is None
            or (other // window == position // window if chunked else position - other < window)
        ]
        assert first == seen[0]


@pytest.mark.parametrize("window", [None, 1, 3, 8, 100])
def test_the_last_position_that_is_seen(window: int | None):
    """The query's own; both ways, as far ahead as the window and the row go."""
    positions = np.arange(20)
    assert np.array_equal(last_seen(positions, 20, window, False), positions)
    for position, last in zip(positions, last_seen(positions, 20, window, True), strict=True):
        assert last == max(other for other in positions if window is None or other - position < window)


def test_no_positions():
    assert len(first_seen(np.zeros(0, np.int64), 4, False)) == 0
