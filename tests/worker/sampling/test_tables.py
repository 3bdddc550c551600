"""Storage of rows: what grows, what is padded, what is given out again."""

import torch

from worker.sampling.tables import Slots, Table

CPU = torch.device("cpu")


def test_slots_follow_the_number_of_users() -> None:
    """Whatever the row numbers are; a slot that is free is lent before a new one."""
    slots = Slots(CPU)
    assert [slots.take(row) for row in (900, 5, 17)] == [0, 1, 2]
    assert slots.take(5) == 1
    slots.remove(5)
    slots.remove(5)
    assert 5 not in slots
    assert [slots.take(row) for row in (3, 4)] == [1, 3]
    assert slots.index([4, 900, 3]).tolist() == [3, 0, 1]


def test_items_are_padded_by_their_first_entry() -> None:
    """When they are set, when the table grows, and when a longer item was there before."""
    table = Table((0,), 9, torch.int64, CPU)
    table.set(0, torch.tensor([1, 2, 3]))
    table.set(2, torch.tensor([4]))
    assert table.gather(torch.tensor([0, 2])).tolist() == [[1, 2, 3], [4, 4, 4]]
    table.set(1, torch.tensor([5, 6, 7, 8]))  # The width at least doubles.
    assert table.gather(torch.tensor([0, 1])).tolist() == [[1, 2, 3, 1, 1, 1], [5, 6, 7, 8, 5, 5]]
    table.set(1, torch.tensor([7], dtype=torch.int64))
    table.set(0, torch.tensor([], dtype=torch.int64))
    assert table.gather(torch.tensor([0, 1])).tolist() == [[9] * 6, [7] * 6]


def test_other_dimensions_are_padded_by_the_fill() -> None:
    """As prefixes of bad words are: more words repeat the first, longer words do not."""
    table = Table((0, 0), -1, torch.int64, CPU)
    table.set(0, torch.tensor([[1], [2]]))
    table.set(1, torch.tensor([[3, 4], [5, 6], [7, 8]]))
    assert table.data[0].tolist() == [[1, -1], [2, -1], [1, -1], [1, -1]]
    assert table.data[1].tolist() == [[3, 4], [5, 6], [7, 8], [3, 4]]


def test_growth_keeps_what_is_there() -> None:
    """1,000 slots and widths cost a few reallocations, not 1,000."""
    table = Table((1,), 0, torch.int64, CPU)
    shapes = set()
    for n in range(1000):
        table.set(n, torch.tensor([n]))
        table.widen(n + 1)
        shapes.add(table.data.shape)
    assert torch.equal(table.data[:1000, 0], torch.arange(1000))
    assert bool((table.data[:1000] == table.data[:1000, :1]).all())
    assert len(shapes) < 25
