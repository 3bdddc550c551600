"""The row table, and plans that do not fit it."""

from collections.abc import Callable

import numpy as np
import pytest

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from worker.step.rows import PlanError, RowTable, column


def new_row(row: int, tokens: list[int], blocks: list[int], prompt_len: int = 0) -> worker_pb2.NewRow:
    return worker_pb2.NewRow(
        row=row,
        token_ids=pack_u32(tokens),
        prompt_len=prompt_len or len(tokens),
        blocks=pack_u32(blocks),
    )


@pytest.fixture
def rows() -> RowTable:
    """4 rows of at most 10 tokens, 8 blocks of 4. Row 1 has 5 tokens and 2 blocks."""
    table = RowTable(max_num_rows=4, max_model_len=10, vocab_size=100, block_size=4, num_blocks=8)
    table.add(new_row(1, [7, 8, 9, 10, 11], [3, 4], prompt_len=4))
    return table


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_add_returns_prompt_and_output(rows: RowTable):
    assert rows.add(new_row(2, [1, 2, 3], [5], prompt_len=2)) == ([1, 2], [3])
    assert rows.num_tokens.tolist() == [0, 5, 3, 0]
    assert rows.blocks[2, :1].tolist() == [5]


def test_fork_copies_everything_and_then_parts(rows: RowTable):
    rows.fork(0, 1)
    rows.append(ints(0), ints(42))
    rows.set_blocks(ints(0), ints(1), ints(1), ints(6))
    assert rows.token_ids[0, :6].tolist() == [7, 8, 9, 10, 11, 42]
    assert rows.num_tokens.tolist() == [6, 5, 0, 0]
    assert rows.prompt_lens[0] == 4
    assert rows.blocks[0, :2].tolist() == [3, 6]
    assert rows.blocks[1, :2].tolist() == [3, 4]


def test_table_changes_replace_and_append(rows: RowTable):
    """Two changes of one row in one plan."""
    rows.set_blocks(ints(1, 1), ints(1, 2), ints(1, 1), ints(0, 7))
    assert rows.blocks[1].tolist() == [3, 0, 7]
    assert rows.num_blocks[1] == 3


def test_a_row_can_begin_again(rows: RowTable):
    rows.remove(1)
    rows.add(new_row(1, [1], [0]))
    assert rows.num_blocks[1] == 1


def test_column_reads_little_endian():
    assert column(b"\x01\x00\x00\x00\xff\xff\xff\xff").tolist() == [1, 2**32 - 1]


BAD_CHANGES: dict[str, Callable[[RowTable], object]] = {
    "row 0 is not in use": lambda rows: rows.remove(0),
    "row 9 is not in use": lambda rows: rows.remove(9),
    "row 1 is in use": lambda rows: rows.add(new_row(1, [1], [0])),
    "row 4 is out of range": lambda rows: rows.add(new_row(4, [1], [0])),
    "begins with 0 tokens": lambda rows: rows.add(new_row(0, [], [0], prompt_len=1)),
    "begins with 11 tokens": lambda rows: rows.add(new_row(0, [1] * 11, [0])),
    "a token out of range": lambda rows: rows.add(new_row(0, [100], [0])),
    "a prompt of 3 tokens": lambda rows: rows.add(new_row(0, [1], [0], prompt_len=3)),
    "row 2 is not in use": lambda rows: rows.fork(0, 2),
    "names a row out of range": lambda rows: rows.set_blocks(ints(4), ints(0), ints(1), ints(0)),
    "names a row that is not": lambda rows: rows.set_blocks(ints(0), ints(0), ints(1), ints(0)),
    "longer than max_model_len": lambda rows: rows.set_blocks(ints(1), ints(2), ints(2), ints(0, 1)),
    "a block out of range": lambda rows: rows.set_blocks(ints(1), ints(2), ints(1), ints(8)),
    "differ in length": lambda rows: rows.set_blocks(ints(1), ints(2), ints(1, 1), ints(0, 1)),
    "sum(table_counts)": lambda rows: rows.set_blocks(ints(1), ints(2), ints(1), ints(0, 1)),
}
BAD_STEPS: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {
    "differ in length": (ints(1), ints(0), ints(1, 1)),
    "out of range": (ints(4), ints(0), ints(1)),
    "twice": (ints(1, 1), ints(0, 1), ints(1, 1)),
    "no token": (ints(1), ints(0), ints(0)),
    "does not have": (ints(1), ints(4), ints(2)),
    "that it does not have": (ints(0), ints(0), ints(1)),
    "leaves out tokens": (ints(2), ints(2), ints(1)),
    "beyond its blocks": (ints(3), ints(0), ints(5)),
}
BAD_SAMPLES: dict[str, tuple[np.ndarray, np.ndarray]] = {
    "differ in length": (ints(1), ints()),
    "out of range": (ints(4), ints(0)),
    "no computing row": (ints(1), ints(1)),
    "twice": (ints(1, 1), ints(0, 0)),
    "before its last token": (ints(2), ints(0)),
    "beyond max_model_len": (ints(0), ints(0)),
}


def test_a_row_gets_a_token_that_the_core_has_chosen(rows: RowTable):
    rows.fork(0, 1)
    rows.check_append(ints(0, 1), ints(20, 30))
    rows.append(ints(0, 1), ints(20, 30))
    assert rows.token_ids[:2, 5].tolist() == [20, 30]
    assert rows.num_tokens[:2].tolist() == [6, 6] and rows.num_computed[:2].tolist() == [5, 5]


BAD_APPENDS: dict[str, tuple[np.ndarray, np.ndarray]] = {
    "differ in length": (ints(1), ints()),
    "is out of range": (ints(4), ints(0)),
    "appended to twice": (ints(1, 1), ints(0, 0)),
    "token is out of range": (ints(1), ints(100)),
    "no place for a token": (ints(0), ints(3)),
    "before its last token": (ints(2), ints(3)),
}


@pytest.mark.parametrize("message", BAD_APPENDS)
def test_bad_appends(rows: RowTable, message: str):
    """Row 2 has computed one of its tokens."""
    rows.add(new_row(2, [1, 2, 3], [5]))
    rows.finish_step(ints(2), ints(1))
    with pytest.raises(PlanError, match=message):
        rows.check_append(*BAD_APPENDS[message])


@pytest.mark.parametrize("message", BAD_CHANGES)
def test_bad_changes(rows: RowTable, message: str):
    with pytest.raises(PlanError) as raised:
        BAD_CHANGES[message](rows)
    assert message in str(raised.value)


@pytest.mark.parametrize("message", BAD_STEPS)
def test_bad_steps(rows: RowTable, message: str):
    """Row 2 has computed one of its tokens; row 3 has too few blocks."""
    rows.add(new_row(2, [1, 2, 3], [5]))
    rows.finish_step(ints(2), ints(1))
    rows.add(new_row(3, [1, 2, 3, 4, 5], [6]))
    with pytest.raises(PlanError, match=message):
        rows.check_compute(*BAD_STEPS[message])


@pytest.mark.parametrize("message", BAD_SAMPLES)
def test_bad_samples(rows: RowTable, message: str):
    """Row 0 is full, and has the token that is sampled behind a full row."""
    rows.add(new_row(0, [1] * 10, [0, 1, 2]))
    rows.check_sample(ints(0), ints(0), ints(0), ints(10))
    rows.append(ints(0), ints(2))
    rows.add(new_row(2, [1, 2, 3], [5]))
    sampling, sources = BAD_SAMPLES[message]
    ends = ints(11) if "beyond" in message else ints(5)
    with pytest.raises(PlanError, match=message):
        rows.check_sample(sampling, sources, ints(1), ends)
