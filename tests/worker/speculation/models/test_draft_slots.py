"""What a draft model need not compute again."""

import numpy as np
import pytest

from worker.speculation.models.draft_slots import DraftSlots
from worker.step.rows import PlanError, RowTable


@pytest.fixture
def rows() -> RowTable:
    """Rows 0 and 1 of 10 tokens, which share their first block of 4."""
    table = RowTable(3, 40, 100, 4, 20)
    table.num_tokens[:2] = 10
    table.blocks[0, :3], table.blocks[1, :3] = [5, 6, 7], [5, 8, 9]
    table.num_blocks[:2] = 3
    return table


def write(slots: DraftSlots, row: int, start: int, count: int) -> None:
    slots.write(np.array([row]), np.array([start]), np.array([count]))


def test_what_was_computed_also_for_a_row_with_the_same_prefix(rows: RowTable) -> None:
    slots = DraftSlots(rows)
    assert slots.length(0) == 0
    slots.computed(0, 0, 6)
    assert slots.length(0) == 6 and slots.length(1) == 4
    slots.computed(0, 6, 10)
    assert slots.length(0) == 9, "the last token is always computed"
    rows.num_tokens[0] = 14
    rows.blocks[0, 3] = 10
    assert slots.length(0) == 10


def test_what_the_target_computes_again_is_other_text(rows: RowTable) -> None:
    slots = DraftSlots(rows)
    slots.computed(0, 0, 10)
    write(slots, 0, 9, 1)
    assert slots.length(0) == 9
    write(slots, 0, 6, 4)
    assert slots.length(0) == 6
    slots.computed(0, 6, 10)
    write(slots, 1, 0, 10)  # it begins in a block that is not cached any more
    assert slots.length(0) == 0
    slots.write(np.array([], np.int64), np.array([], np.int64), np.array([], np.int64))


def test_copies_and_blocks_from_host_memory(rows: RowTable) -> None:
    slots = DraftSlots(rows)
    slots.computed(0, 0, 6)
    slots.copy(np.array([6]), np.array([8]))
    assert slots.length(1) == 6
    slots.forget(np.array([5]))
    assert slots.length(0) == slots.length(1) == 0


@pytest.mark.parametrize(("row", "start"), [(3, 0), (0, 40)])
def test_a_plan_that_cannot_be(rows: RowTable, row: int, start: int) -> None:
    with pytest.raises(PlanError):
        write(DraftSlots(rows), row, start, 1)
