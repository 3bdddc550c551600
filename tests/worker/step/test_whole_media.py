"""How far tokens of a step see, of rows with items that are seen whole."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pagewire.internal.v1 import worker_pb2
from tests.worker.vision.images import item_of, make_image
from worker.step.rows import PlanError
from worker.step.whole_media import WholeMediaRows

IMAGE = make_image("gemma3")


def rows(*items: Any) -> WholeMediaRows:
    """Row 3 has these items, row 4 none."""
    made = WholeMediaRows()
    made.add_row(3, worker_pb2.NewRow(media=[item_of(IMAGE, each) for each in items]), [0] * 30, [])
    made.add_row(4, worker_pb2.NewRow(), [0] * 30, [])
    return made


def step(*work: tuple[int, int, int]) -> Any:
    """A step of row, start, count each."""
    numbers, starts, counts = (np.array(column, np.int64) for column in zip(*work, strict=True))
    return SimpleNamespace(rows=numbers, starts=starts, counts=counts)


def seen(found: WholeMediaRows, of: Any, first: list[int]) -> list[int]:
    batch = SimpleNamespace(row_starts=np.array(first), with_last_seen=torch.Tensor.tolist)
    return found.put(of, batch)  # type: ignore[arg-type, return-value]


def test_tokens_of_an_item_see_its_end():
    found = rows(range(2, 5), range(5, 9))
    work = step((4, 7, 2), (3, 0, 10))
    assert seen(found, work, [10, 0]) == [0, 1, 4, 4, 4, 8, 8, 8, 8, 9, 7, 8]
    assert found.computes(work)
    assert seen(found, step((3, 3, 7)), [0]) == [4, 4, 8, 8, 8, 8, 9]  # the item's beginning was cached


def test_steps_without_them_stay_as_they_are():
    found = rows(range(2, 5))
    for work in (step((4, 0, 9)), step((3, 0, 2), (4, 3, 1)), step((3, 5, 4))):
        batch = SimpleNamespace(row_starts=np.zeros(2, np.int64))
        assert found.put(work, batch) is batch and not found.computes(work)  # type: ignore[arg-type, comparison-overlap]


def test_a_step_that_cuts_one_is_refused():
    with pytest.raises(PlanError, match="a part of what is seen whole"):
        rows(range(2, 5)).of_step(np.zeros(1, np.int64), step((3, 0, 4)))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="gaps"):
        rows([1, 2, 4])


def test_forks_see_what_their_source_does_and_rows_end():
    found = rows(range(2, 5))
    found.fork_row(5, 3, 1)
    assert seen(found, step((5, 2, 3)), [0]) == [4, 4, 4]
    found.remove_row(5)
    assert not found.computes(step((5, 2, 3)))
