"""ranges() with a run of length 0 in the middle."""

import numpy as np

from kernels.ops.attention.ragged import ranges


def test_ranges():
    owners, integers = ranges(np.array([3, 10, 0]), np.array([2, 0, 3]))
    assert owners.tolist() == [0, 0, 2, 2, 2]
    assert integers.tolist() == [3, 4, 0, 1, 2]
