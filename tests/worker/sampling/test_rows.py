"""Parameters and positions by row, as the kernels of all devices read them."""

import pytest

from kernels.ops.sampling.columns import NEUTRAL, SamplingColumns
from tests.worker.sampling_reference import Case
from worker.sampling.batch import NewSequence
from worker.sampling.rows import SamplingRows

V = 40


class Recorder:
    """A processor that notes its rows."""

    def __init__(self) -> None:
        self.rows: set[int] = set()

    def __contains__(self, row: object) -> bool:
        return row in self.rows

    def add_row(self, row: int, sequence: NewSequence) -> None:
        self.rows.add(row)

    def fork_row(self, row: int, source_row: int) -> None:
        if source_row in self.rows:
            self.rows.add(row)

    def remove_row(self, row: int) -> None:
        self.rows.discard(row)


def rows_of(*cases: Case, processors: tuple[Recorder, ...] = ()) -> SamplingRows:
    rows = SamplingRows(SamplingColumns(4), V, processors)
    for row, case in enumerate(cases):
        rows.add_row(row, case.new_row(row), case.prompt, case.output)
    return rows


def test_absent_parameters_are_neutral():
    rows = rows_of(Case({"temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.5}, [1], [2]))
    case = Case({}, [1], [2, 3])
    rows.add_row(0, case.new_row(0), case.prompt, case.output)
    assert {name: rows.columns[name][0] for name in NEUTRAL} == NEUTRAL
    assert rows.columns.positions[0] == rows.columns["position"][0] == 2


@pytest.mark.parametrize(("top_k", "kept"), [(0, 0), (V - 1, V - 1), (V, 0), (2**32 - 1, 0)])
def test_top_k_of_all_tokens_is_none(top_k: int, kept: int):
    assert rows_of(Case({"top_k": top_k}, [1], [])).columns["top_k"][0] == kept


def test_a_seed_has_all_its_bits():
    assert rows_of(Case({"seed": 2**64 - 2}, [1], [])).columns["seed"][0] == 2**64 - 2


def test_a_fork_has_its_own_index_and_goes_on_by_itself():
    processor = Recorder()
    case = Case({"temperature": 0.5, "seed": 5}, [1], [2], sequence_index=1)
    rows = rows_of(case, processors=(processor,))
    rows.fork_row(3, 0, 2)
    rows.columns.positions[0] += 1
    assert rows.columns["temperature"][3] == 0.5 and rows.columns["seed"][3] == 5
    assert rows.columns["sequence_index"].tolist() == [1, 0, 0, 2]
    assert rows.columns.positions.tolist() == [2, 0, 0, 1]
    assert processor.rows == {0, 3}
    rows.remove_row(3)
    assert processor.rows == {0}
    rows.fork_row(0, 1, 0)
    assert not processor.rows, "a row that begins anew forgets what it was"
