"""Parameters and positions by row, as the kernels of all devices read them."""

import numpy as np
import pytest

from tests.worker.sampling_reference import Case
from worker.sampling.batch import NewSequence
from worker.sampling.state import SamplingState

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


def sequence(case: Case) -> NewSequence:
    return NewSequence(case.new_row(0), case.prompt, case.output)


def test_absent_parameters_are_neutral():
    state = SamplingState(3, V, ())
    state.add_row(1, sequence(Case({"temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.5}, [1], [2])))
    state.add_row(1, sequence(Case({}, [1], [2, 3])))
    parameters = state.temperature, state.top_k, state.top_p, state.min_p, state.typical_p
    assert [column[1] for column in parameters] == [1, 0, 1, 0, 1]
    assert state.positions[1] == state.position_column[1] == 2


@pytest.mark.parametrize(("top_k", "kept"), [(0, 0), (V - 1, V - 1), (V, 0), (2**32 - 1, 0)])
def test_top_k_of_all_tokens_is_none(top_k: int, kept: int):
    state = SamplingState(1, V, ())
    state.add_row(0, sequence(Case({"top_k": top_k}, [1], [])))
    assert state.top_k[0] == kept


def test_a_seed_is_two_words():
    state = SamplingState(1, V, ())
    state.add_row(0, sequence(Case({"seed": 2**64 - 2}, [1], [])))
    assert state.keys[0].tolist() == [2**32 - 2, 2**32 - 1]
    assert (state.keys[:, 0] | state.keys[:, 1] << 32).view(np.uint64).tolist() == [2**64 - 2]


def test_a_fork_has_its_own_index_and_goes_on_by_itself():
    processor = Recorder()
    state = SamplingState(4, V, (processor,))
    state.add_row(0, sequence(Case({"temperature": 0.5, "seed": 5}, [1], [2], sequence_index=1)))
    state.fork_row(3, 0, 2)
    state.advance([0])
    assert state.temperature[3] == 0.5 and state.keys[3].tolist() == [5, 0]
    assert state.sequence_index.tolist() == [1, 0, 0, 2]
    assert state.positions.tolist() == [2, 0, 0, 1]
    assert state.is_processed(3)
    state.remove_row(3)
    assert processor.rows == {0} and not state.is_processed(3)
    state.fork_row(0, 1, 0)
    assert not processor.rows, "a row that begins anew forgets what it was"
