"""Runs of consecutive integers, the index arithmetic of ragged batches. numpy alone.

starts [3, 10], counts [2, 3]  ->  [0, 0, 1, 1, 1], [3, 4, 10, 11, 12]
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.integer[Any]]


def ranges(starts: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """Returns the integers starts[i] .. starts[i] + counts[i] - 1 for all i, behind the i of each: (i,
    integer), both [sum of counts] int64."""
    owners = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    return owners, np.arange(len(owners)) + (starts - before)[owners]
