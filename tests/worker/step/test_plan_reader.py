"""A plan's changes to rows, in the order of the contract, and what it computes."""

from typing import Any

import numpy as np
import pytest

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from worker.step.plan_reader import (
    Measures,
    append_tokens,
    apply_changes,
    block_copies,
    read_step,
    read_swaps,
    token_column,
)
from worker.step.rows import PlanError, RowTable
from worker.step.warmup_plans import prefill_plan


def table() -> RowTable:
    return RowTable(max_num_rows=4, max_model_len=12, vocab_size=50, block_size=4, num_blocks=20)


def plan(**columns: Any) -> worker_pb2.StepPlan:
    """Lists of integers become columns."""
    packed = {
        name: value if name in ("new_rows", "forks") else pack_u32(value) for name, value in columns.items()
    }
    return worker_pb2.StepPlan(**packed)


class Recorder:
    """A feature that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        self.calls.append(("add", row, prompt_ids, output_ids))

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        self.calls.append(("fork", row, source_row, sequence_index))

    def remove_row(self, row: int) -> None:
        self.calls.append(("remove", row))


def test_rows_end_before_others_begin_and_tables_change_last():
    """A row may end and begin in one plan, and a fork may copy a row that begins in it."""
    rows, feature = table(), Recorder()
    apply_changes(prefill_plan([2], 4), rows, (feature,))
    new = worker_pb2.NewRow(row=0, prompt_len=2, token_ids=pack_u32([7, 8, 9]), blocks=pack_u32([3]))
    fork = worker_pb2.ForkRow(row=2, source_row=0, sequence_index=1)
    changes = {"table_rows": [2], "table_starts": [0], "table_counts": [2], "table_blocks": [11, 12]}
    apply_changes(plan(removed_rows=[0], new_rows=[new], forks=[fork], **changes), rows, (feature,))
    assert feature.calls[1:] == [("remove", 0), ("add", 0, [7, 8], [9]), ("fork", 2, 0, 1)]
    assert rows.token_ids[2, :3].tolist() == [7, 8, 9]
    assert rows.blocks[0, 0] == 3 and rows.blocks[2, :2].tolist() == [11, 12]


def test_tokens_are_appended_behind_what_is_computed():
    rows = table()
    apply_changes(prefill_plan([2], 4), rows, ())
    assert append_tokens(plan(), rows)[0] == []
    appended, tokens = append_tokens(plan(append_rows=[0], append_token_ids=[33]), rows)
    assert (appended, tokens.tolist()) == ([0], [33])
    assert rows.num_tokens[0] == 3 and rows.token_ids[0, 2] == 33
    with pytest.raises(PlanError, match="before its last token"):
        rows.num_computed[0] = 1
        append_tokens(plan(append_rows=[0], append_token_ids=[1]), rows)


def test_copies_and_swaps_are_absent_from_most_plans():
    sources, targets = block_copies(plan(), 20)
    assert not len(sources) and not len(targets)
    assert read_swaps(plan(), 20, 5) is None
    swaps = read_swaps(plan(swap_out_blocks=[3, 4], swap_out_host_blocks=[0, 1]), 20, 5)
    assert swaps is not None and len(swaps) == 2


BAD_BLOCKS = {
    "copy_sources and copy_targets": {"copy_sources": [1]},
    "a copied block is out of range": {"copy_sources": [1], "copy_targets": [20]},
    "to swap out differ": {"swap_out_blocks": [1]},
    "two blocks are swapped in": {"swap_in_host_blocks": [1, 2], "swap_in_blocks": [4, 4]},
    "a swapped block is out of range": {"swap_out_blocks": [20], "swap_out_host_blocks": [1]},
    "a host block is out of range": {"swap_out_blocks": [1], "swap_out_host_blocks": [5]},
    "written and read": {
        **{"swap_out_blocks": [1], "swap_out_host_blocks": [2]},
        **{"swap_in_host_blocks": [2], "swap_in_blocks": [3]},
    },
}


@pytest.mark.parametrize("message", BAD_BLOCKS)
def test_blocks_that_do_not_exist(message: str):
    with pytest.raises(PlanError, match=message):
        block_copies(plan(**BAD_BLOCKS[message]), 20)
        read_swaps(plan(**BAD_BLOCKS[message]), 20, 5)


def test_a_step_is_read_into_contiguous_columns():
    rows, begin = table(), prefill_plan([3, 2], 4)
    apply_changes(begin, rows, ())
    step = read_step(begin, rows, max_num_batched_tokens=5)
    assert step.measures == Measures(num_tokens=5, context=3, in_order=True)
    columns = (step.rows, step.starts, step.counts, step.sample_rows, step.sample_sources)
    offsets = [column.ctypes.data - step.address for column in columns]
    assert offsets == [0, 16, 32, 48, 64]
    with pytest.raises(PlanError, match="max_num_batched_tokens"):
        read_step(begin, rows, max_num_batched_tokens=4)
    begin.counts = pack_u32([3])
    with pytest.raises(PlanError, match="differ in length"):
        read_step(begin, rows, max_num_batched_tokens=5)


def test_no_token_has_a_number_of_its_own():
    assert token_column(np.array([5, -1])) == pack_u32([5, 2**32 - 1])
