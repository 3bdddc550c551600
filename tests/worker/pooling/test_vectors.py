"""Vectors out of hidden states."""

import numpy as np
import pytest
import torch

from pagewire.internal.v1.engine_pb2 import Pooling
from worker.pooling.running import RunningMean
from worker.pooling.vectors import finish

STATES = np.random.default_rng(5).standard_normal((37, 24)).astype(np.float32) * 100


@pytest.mark.parametrize("dimensions", [0, 7])
def test_a_vector_has_the_length_one(dimensions: int):
    found = finish(STATES, Pooling(dimensions=dimensions, normalize=True))
    assert found is not None and found.dtype == np.float32 and found.shape == (37, dimensions or 24)
    cut = torch.from_numpy(STATES[:, : dimensions or 24])
    expected = torch.nn.functional.normalize(cut, dim=1).numpy()
    assert np.abs(found - expected).max() < 1e-7
    for state, vector in zip(STATES, found, strict=True):
        alone = finish(state[None], Pooling(dimensions=dimensions, normalize=True))
        assert alone is not None and alone.tobytes() == vector.tobytes()
    plain = finish(STATES, Pooling(dimensions=dimensions))
    assert plain is not None and plain.tolist() == cut.tolist()


def test_zeros_stay_and_what_is_not_finite_is_no_vector():
    zeros = finish(np.zeros((1, 3), np.float32), Pooling(normalize=True))
    assert zeros is not None and zeros.tolist() == [[0, 0, 0]]
    for value in (np.nan, np.inf):
        assert finish(np.array([[1, 1], [1, value]], np.float32), Pooling()) is None
    kept = finish(np.array([[1, np.nan]], np.float32), Pooling(dimensions=1))
    assert kept is not None and kept.tolist() == [[1]]


def test_a_mean_has_the_same_bits_in_any_chunks():
    """Sums of this data differ by the order of summation: the test would notice."""
    whole = RunningMean()
    whole.add(STATES)
    for size in (1, 2, 5, 36):
        mean = RunningMean()
        for begin in range(0, len(STATES), size):
            mean.add(STATES[begin : begin + size])
        assert mean.value().tobytes() == whole.value().tobytes()
    assert np.abs(whole.value() - STATES.mean(0)).max() < 1e-4
    halves = (STATES[:18].sum(0) + STATES[18:].sum(0)) / np.float32(len(STATES))
    assert halves.tobytes() != whole.value().tobytes()
