"""Drafts of an executor's rows: for which of them, how long, and up to where."""

from collections.abc import Sequence

import numpy as np
import pytest

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from worker.speculation.speculator import Speculator
from worker.step.rows import PlanError, RowTable


class Counting:
    """Drafts 10, 11, 12 ..."""

    is_free = True
    computed_prompts = False

    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        return [list(range(10, 10 + length)) for length in most]

    def remove_row(self, row: int) -> None:
        """Nothing is kept."""


@pytest.fixture
def rows() -> RowTable:
    table = RowTable(6, 40, 100, 4, 100)
    for row in range(5):
        table.token_ids[row, :3] = [1, 2, 3]
        table.num_tokens[row] = 3
    return table


def speculator(rows: RowTable, **options: int) -> Speculator:
    asked = worker_pb2.Speculation(**{"tokens": 7, "batch": 16} | options)
    return Speculator(asked, [(1, Counting())], rows)


def plan(counts: list[int], sample_counts: list[int]) -> worker_pb2.StepPlan:
    """Rows 0, 1 ... compute their third token and what is drafted."""
    numbers = pack_u32(range(len(counts)))
    return worker_pb2.StepPlan(
        rows=numbers,
        sample_rows=numbers,
        sample_sources=numbers,
        starts=pack_u32([2] * len(counts)),
        counts=pack_u32(counts),
        sample_counts=pack_u32(sample_counts),
    )


def test_drafts_lie_in_the_rows_while_the_step_computes(rows: RowTable) -> None:
    drafts = speculator(rows, tokens=2).make_drafts(plan([4, 1, 2], [4, 1, 2]))
    assert drafts is not None and drafts.tokens == [[10, 11], [], [10]]
    assert drafts.counts.tolist() == [3, 1, 2] and drafts.num_logits.tolist() == [3, 1, 2]
    assert rows.num_tokens.tolist() == [5, 3, 4, 3, 3, 0] and rows.token_ids[0, 3:5].tolist() == [10, 11]
    drafts.take_back(np.arange(3), rows)
    assert rows.num_tokens.tolist() == [3] * 5 + [0]


def test_no_plan_with_room_no_draft(rows: RowTable) -> None:
    assert speculator(rows).make_drafts(worker_pb2.StepPlan()) is None


def test_a_draft_ends_before_a_token_that_may_end_the_row(rows: RowTable) -> None:
    """A grammar allows nothing behind its end, and the sampler would find no token there."""
    drafting = speculator(rows, tokens=4)
    for feature in drafting.features:
        feature.add_row(0, worker_pb2.NewRow(stop_token_ids=[12, 50]), [], [])
        feature.fork_row(1, 0, 1)
        feature.add_row(2, worker_pb2.NewRow(stop_token_ids=[50]), [], [])
    assert list(drafting.next_counts(np.arange(3))) == [2, 2, 4]
    for feature in drafting.features:
        feature.remove_row(0)
    assert list(drafting.next_counts(np.array([0]))) == [4]


def test_beams_are_not_drafted_for(rows: RowTable) -> None:
    drafting = speculator(rows, tokens=3)
    drafting.add_row(0, worker_pb2.NewRow(num_beam_candidates=4), [], [])
    drafting.fork_row(1, 0, 1)
    assert list(drafting.next_counts(np.arange(3))) == [0, 0, 3]
    assert not drafting.next_counts(np.arange(2))


def test_so_many_rows_that_drafts_do_not_pay(rows: RowTable) -> None:
    drafting = speculator(rows, batch=4)
    assert drafting.next_counts(np.arange(3)) and not drafting.next_counts(np.arange(4))


def test_no_draft_goes_beyond_the_context(rows: RowTable) -> None:
    rows.num_tokens[0] = 38
    assert list(speculator(rows).next_counts(np.array([0]))) == [1]
    rows.num_tokens[0] = 39
    assert not speculator(rows).next_counts(np.array([0]))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sample_counts": pack_u32([2])}, "differ in length"),
        ({"sample_counts": pack_u32([0, 1])}, "samples no token"),
        ({"counts": pack_u32([1, 1])}, "more tokens than it computes"),
        ({"sample_sources": pack_u32([1, 0])}, "does not compute"),
        ({"sample_rows": pack_u32([5, 1])}, "not in use"),
        ({"counts": pack_u32([60, 1]), "sample_counts": pack_u32([60, 1])}, "beyond max_model_len"),
    ],
)
def test_plans_that_do_not_fit(rows: RowTable, changes: dict[str, bytes], why: str) -> None:
    wrong = plan([3, 1], [3, 1])
    for name, column in changes.items():
        setattr(wrong, name, column)
    with pytest.raises(PlanError, match=why):
        speculator(rows).make_drafts(wrong)
