"""Runs of consecutive integers."""

import numpy as np
import pytest

from kernels.ops.attention.ragged import ranges


def test_ranges():
    """A run of length 0 in the middle leaves nothing."""
    owners, integers = ranges(np.array([3, 10, 0]), np.array([2, 0, 3]))
    assert owners.tolist() == [0, 0, 2, 2, 2]
    assert integers.tolist() == [3, 4, 0, 1, 2]


@pytest.mark.parametrize("counts", [[], [0], [0, 0, 0], [1], [5, 1, 0, 0, 7]])
def test_equals_python(counts: list[int]):
    starts = [11 * index for index in range(len(counts))]
    owners, integers = ranges(np.array(starts, np.int64), np.array(counts, np.int64))
    assert owners.tolist() == [index for index, count in enumerate(counts) for _ in range(count)]
    assert integers.tolist() == [
        value for start, count in zip(starts, counts, strict=True) for value in range(start, start + count)
    ]
