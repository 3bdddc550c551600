"""Where the positions that a query sees begin, against a count of those that it sees."""

import numpy as np
import pytest

from kernels.ops.attention.gather_plan import first_seen


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


def test_no_positions():
    assert len(first_seen(np.zeros(0, np.int64), 4, False)) == 0
