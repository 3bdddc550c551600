"""When a plan may begin before the last micro-batch has ended."""

from types import SimpleNamespace
from typing import Any

import pytest

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from worker.executor.pending_step import Rest

REST = Rest(
    begun=SimpleNamespace(room=10, most_begun=2),  # type: ignore[arg-type]
    rows=frozenset({0, 1}),
    sampled=frozenset({0, 4}),
    tokens=5,
    finish=lambda: None,
)
"""Rows 0 and 1 compute; row 0 samples, and so does row 4, which has forked from it."""


def plan(rows: list[int], counts: list[int] | None = None, **changes: Any) -> worker_pb2.StepPlan:
    counts = counts or [1] * len(rows)
    return worker_pb2.StepPlan(
        micro_batch=True,
        rows=pack_u32(rows),
        counts=pack_u32(counts),
        **{
            name: pack_u32(value) if name.endswith("_rows") and name != "new_rows" else value
            for name, value in changes.items()
        },
    )


@pytest.mark.parametrize(
    ("next_plan", "is_allowed"),
    [
        (plan([2, 3]), True),
        (plan([1, 2]), True),  # the next part of a prompt
        (plan([0]), False),
        (plan([4]), False),
        (plan([2], [11]), False),
        (plan([2], removed_rows=[3]), True),
        (plan([2], removed_rows=[1]), False),
        (plan([2], removed_rows=[4]), False),
        (plan([2], append_rows=[4]), False),
        (plan([2], new_rows=[worker_pb2.NewRow(row=4)]), False),
        (plan([2], forks=[worker_pb2.ForkRow(row=4, source_row=2)]), False),
        (worker_pb2.StepPlan(rows=pack_u32([2]), counts=pack_u32([1])), False),
    ],
)
def test_a_plan_waits_for_what_it_changes(next_plan: worker_pb2.StepPlan, is_allowed: bool):
    assert REST.allows(next_plan, 1) is is_allowed
    assert not REST.allows(next_plan, 2)
