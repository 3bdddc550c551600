"""Beams among rows, and their candidates as columns."""

import numpy as np
import pytest

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import unpack_f32, unpack_u32
from worker.step.beams import NO_TOKEN, BeamCandidates, BeamRows, write_candidates
from worker.step.rows import PlanError


def test_rows_begin_fork_and_end():
    beams = BeamRows(6, 50)
    every = np.arange(6)
    assert not beams.any_in(every)
    beams.add_row(2, worker_pb2.NewRow(row=2, num_beam_candidates=4), [1], [])
    beams.add_row(3, worker_pb2.NewRow(row=3), [1], [])
    beams.fork_row(5, 2, 1)
    beams.fork_row(1, 3, 1)
    assert beams.counts(every).tolist() == [0, 0, 4, 0, 0, 4]
    assert beams.mask(every).tolist() == [False, False, True, False, False, True]
    assert beams.any_in(np.array([0, 5])) and not beams.any_in(np.array([0, 1, 3]))
    beams.remove_row(2)
    beams.remove_row(5)
    assert not beams.any_in(every)


def test_more_candidates_than_tokens_are_refused():
    with pytest.raises(PlanError, match="more tokens than there are"):
        BeamRows(2, 50).add_row(0, worker_pb2.NewRow(num_beam_candidates=51), [1], [])


def test_each_beam_writes_as_many_candidates_as_it_requested():
    """NaN says that a beam has nothing to choose from; -inf is a candidate that was masked."""
    ids = np.array([[7, 8, 9], [4, 5, 6], [1, 2, 3]])
    logprobs = np.array([[-1, -2, -3], [np.nan] * 3, [-0.5, -np.inf, -np.inf]], np.float32)
    result = worker_pb2.StepResult()
    tokens = write_candidates(BeamCandidates(ids, logprobs), np.array([2, 1, 3]), result)
    assert tokens.tolist() == [0, NO_TOKEN, 0]
    assert unpack_u32(result.beam_token_ids) == [7, 8, 4, 1, 2, 3]
    written = unpack_f32(result.beam_logprobs)
    assert np.array_equal(written, [-1, -2, np.nan, -0.5, -np.inf, -np.inf], equal_nan=True)
