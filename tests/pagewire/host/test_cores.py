"""Available cores and their division, with fake cores: the machine may have only one."""

import math
import os

import pytest

from pagewire.host import resources
from pagewire.host.resources import (
    CorePlan,
    affinity,
    available_cores,
    by_node,
    format_cores,
    parse_cores,
    pin,
    plan_cores,
)


def test_cores_of_a_node_are_adjacent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where even cores are of one socket and odd ones of the other, and hyper-threads come last."""
    monkeypatch.setattr(resources, "_node", lambda core: core % 2)
    monkeypatch.setattr(resources, "_siblings", lambda core: core % 4)
    assert by_node(range(8)) == [0, 4, 2, 6, 1, 5, 3, 7]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert affinity() == [0, 2, 1, 3]


def test_ranges() -> None:
    for text, numbers in (("0", [0]), ("0-3,6", [0, 1, 2, 3, 6]), ("1,3,5", [1, 3, 5])):
        assert format_cores(numbers) == text and parse_cores(text) == numbers
    assert format_cores([6, 2, 1, 0]) == "0-2,6"
    for wrong in ("", "a", "1-", "1,,2"):
        with pytest.raises(ValueError):
            parse_cores(wrong)


@pytest.mark.parametrize(
    ("count", "workers", "others", "threads", "expected"),
    [
        (1, 1, 2, 0, None),
        (2, 1, 2, 0, None),
        (3, 1, 2, 0, CorePlan(((1, 2),), (0,))),
        (4, 1, 2, 0, CorePlan(((1, 2, 3),), (0,))),
        (8, 2, 3, 0, CorePlan(((1, 2, 3), (4, 5, 6, 7)), (0,))),
        (24, 1, 2, 0, CorePlan((tuple(range(2, 24)),), (0, 1))),  # no more than there are processes
        (24, 1, 9, 0, CorePlan((tuple(range(3, 24)),), (0, 1, 2))),  # no more than an eighth
        (4, 4, 5, 0, None),  # three cores for four workers
        (8, 1, 2, 4, CorePlan(((4, 5, 6, 7),), (0, 1, 2, 3))),
        (8, 2, 2, 3, CorePlan(((2, 3, 4), (5, 6, 7)), (0, 1))),
        (4, 1, 2, 4, None),  # as many threads as there are cores
    ],
)
def test_plan(count: int, workers: int, others: int, threads: int, expected: CorePlan | None) -> None:
    assert plan_cores(range(count), workers, others, threads) == expected


def test_cores_keep_their_numbers() -> None:
    """An affinity may have holes."""
    assert plan_cores([3, 5, 9, 11], 1, 2) == CorePlan(((5, 9, 11),), (3,))
    assert str(plan_cores([3, 4, 5, 9], 1, 2)) == "4-5,9 for the worker, 3 for all other processes"
    assert str(plan_cores([0, 1, 2, 3], 2, 3)) == "1, 2-3 for the workers, 0 for all other processes"


@pytest.mark.parametrize(("limit", "available"), [(math.inf, 8), (2.5, 2), (0.5, 1), (64, 8)])
def test_available(monkeypatch: pytest.MonkeyPatch, limit: float, available: int) -> None:
    """By affinity, and by control groups."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(resources, "cpu_limit", lambda: limit)
    assert available_cores() == available


def test_hardware_threads_of_one_core_lie_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that two workers do not share one where it can be avoided."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(resources, "_siblings", lambda core: core % 4)
    assert affinity() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_pinning_that_is_not_permitted_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, numbers: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert pin([0]) == "[Errno 1] Operation not permitted"
    monkeypatch.delattr(os, "sched_setaffinity")
    assert pin([0]) is not None
