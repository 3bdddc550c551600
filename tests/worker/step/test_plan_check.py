"""The compiled check of a step and its twin say the same, of good steps and of bad ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.cpu.step.inputs import StepCheck
from kernels.ops.attention.ragged import Integers
from tests.worker.step.checks import compiled_check
from tests.worker.step.test_rows import new_row
from worker.step.plan_reader import Measures, check_by_numpy, checked_step
from worker.step.rows import PlanError, RowTable

pytestmark = pytest.mark.cpu_kernels
TOKENS, COMPUTED = [10, 5, 3, 1], [9, 5, 1, 0]


@pytest.fixture(scope="module")
def rows() -> RowTable:
    """Row 0 is full, row 2 has too few blocks, row 4 is not in use."""
    table = RowTable(max_num_rows=5, max_model_len=10, vocab_size=100, block_size=4, num_blocks=8)
    for row, (tokens, computed) in enumerate(zip(TOKENS, COMPUTED, strict=True)):
        blocks = [0, 1, 2][: 0 if row == 2 else 3]
        table.add(new_row(row, list(range(tokens)), blocks))
        table.finish_step(np.array([row]), np.array([computed]))
    return table


@pytest.fixture(scope="module")
def compiled(rows: RowTable) -> StepCheck:
    return compiled_check(rows)


def compiled_answer(check: StepCheck, columns: Integers, num_rows: int, num_samples: int) -> Measures | None:
    """None: it does not fit, without asking the reference."""
    found = check(columns.ctypes.data, num_rows, num_samples)
    assert not check.marks.any(), "nothing is remembered of a step"
    return None if found is None else Measures(*found)


def twin_answer(rows: RowTable, columns: Integers, num_rows: int, num_samples: int) -> Measures | None:
    try:
        return check_by_numpy(rows, columns, num_rows, num_samples)
    except PlanError:
        return None


small = st.integers(0, 11)


@given(data=st.data())
def test_twins(rows: RowTable, compiled: StepCheck, data: st.DataObject) -> None:
    """Mostly steps that could be: their numbers are near those of the rows."""
    computing = data.draw(
        st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=data.draw(st.booleans()))
    )
    counts = [data.draw(st.integers(0, 2)) for _ in computing]
    at_end = data.draw(st.booleans())
    starts = [
        TOKENS[row] - count if at_end and row < 4 and count <= TOKENS[row] else data.draw(small)
        for row, count in zip(computing, counts, strict=True)
    ]
    sources = data.draw(st.lists(st.integers(0, len(computing)), max_size=5))
    sampling = [computing[source] if source < len(computing) else data.draw(small) for source in sources]
    columns = np.array([*computing, *starts, *counts, *sampling, *sources], np.int64)
    expected = twin_answer(rows, columns, len(computing), len(sampling))
    assert compiled_answer(compiled, columns, len(computing), len(sampling)) == expected


@pytest.mark.parametrize(
    ("columns", "num_samples", "expected"),
    [
        ([1, 4, 1, 1, 0], 1, Measures(1, 5, True)),
        ([1, 3, 4, 0, 1, 1, 3, 1, 1, 0], 2, Measures(2, 5, False)),
        ([1, 0, 5], 0, Measures(5, 5, False)),
        ([1, 0xFFFFFFFF, 0xFFFFFFFF], 0, None),
        ([0xFFFFFFFF, 0, 1], 0, None),
    ],
)
def test_examples(
    rows: RowTable, compiled: StepCheck, columns: list[int], num_samples: int, expected: Measures | None
) -> None:
    values = np.array(columns, np.int64)
    num_rows = (len(columns) - 2 * num_samples) // 3
    assert compiled_answer(compiled, values, num_rows, num_samples) == expected
    assert twin_answer(rows, values, num_rows, num_samples) == expected


def test_a_row_may_fill_its_blocks_and_no_more() -> None:
    """Row 0 ends where its last block does, row 1 one token behind that."""
    table = RowTable(max_num_rows=2, max_model_len=10, vocab_size=100, block_size=4, num_blocks=8)
    for row, tokens in enumerate((8, 9)):
        table.add(new_row(row, list(range(tokens)), [2 * row, 2 * row + 1]))
        table.finish_step(np.array([row]), np.array([tokens - 1]))
    check = compiled_check(table)
    for columns, expected in (([0, 7, 1], Measures(1, 8, False)), ([1, 8, 1], None)):
        values = np.array(columns, np.int64)
        assert compiled_answer(check, values, 1, 0) == twin_answer(table, values, 1, 0) == expected


def test_what_does_not_fit_is_said(rows: RowTable, compiled: StepCheck) -> None:
    columns = np.array([1, 4, 3], np.int64)
    with pytest.raises(PlanError, match="computes tokens that it does not have"):
        checked_step(columns, 1, rows, 100, compiled)
