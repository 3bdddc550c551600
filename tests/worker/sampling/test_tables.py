"""Tables of rows: what grows, what is padded."""

import numpy as np
import torch

from worker.sampling.token_bans import Table

CPU = torch.device("cpu")


def test_items_are_padded() -> None:
    """When they are set, when the table grows, and when a longer item was there before."""
    table = Table((0,), 9, np.int64, CPU)
    table.set(0, [1, 2, 3])
    table.set(2, [4])
    assert table.data[[0, 2]].tolist() == [[1, 2, 3], [4, 9, 9]]
    table.set(1, [5, 6, 7, 8])  # The width at least doubles.
    assert table.data[[0, 1]].tolist() == [[1, 2, 3, 9, 9, 9], [5, 6, 7, 8, 9, 9]]
    table.set(1, [7])
    table.set(0, [])
    assert table.data[[0, 1]].tolist() == [[9] * 6, [7, 9, 9, 9, 9, 9]]
    table.copy(7, 1)
    assert table.data[7].tolist() == [7, 9, 9, 9, 9, 9]


def test_other_dimensions_are_padded_too() -> None:
    """As prefixes of bad words are."""
    table = Table((0, 0), -1, np.int64, CPU)
    table.set(0, [1, 2], (2, 1))
    table.set(1, [3, 4, 5, 6, 7, 8], (3, 2))
    assert table.data[0].tolist() == [[1, -1], [2, -1], [-1, -1], [-1, -1]]
    assert table.data[1].tolist() == [[3, 4], [5, 6], [7, 8], [-1, -1]]
    table.set(0, [], (0, 0))
    assert table.data[0].tolist() == [[-1, -1]] * 4


def test_growth_keeps_what_is_there() -> None:
    """1,000 rows and widths cost a few reallocations, not 1,000."""
    table = Table((1,), 0, np.int64, CPU)
    shapes = set()
    for n in range(1000):
        table.set(n, [n])
        table.grow((0, n + 1))
        shapes.add(table.data.shape)
    assert torch.equal(table.data[:1000, 0], torch.arange(1000))
    assert not table.data[:, 1:].any()
    assert len(shapes) < 25
