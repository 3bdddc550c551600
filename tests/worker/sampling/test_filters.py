"""Candidates and filters of rows with parameters of their own, against the operations row by row."""

import numpy as np
import pytest
import torch

from kernels.ops.sampling.min_p import min_p
from kernels.ops.sampling.top_p import top_mass
from kernels.ops.sampling.typical_p import typical_p
from tests.worker.sampling_reference import Case
from worker.sampling.batch import NewSequence
from worker.sampling.candidates import candidates_of
from worker.sampling.filters import filters_of
from worker.sampling.state import SamplingState

V = 30


def state_of(*parameters: dict[str, float]) -> SamplingState:
    """One row each."""
    state = SamplingState(len(parameters), V, ())
    for row, sampling in enumerate(parameters):
        state.add_row(row, NewSequence(Case(dict(sampling)).new_row(row), [0], []))
    return state


def logits(count: int) -> torch.Tensor:
    return torch.randn(count, V, generator=torch.Generator().manual_seed(3)) * 2


def test_candidates_of_the_whole_vocabulary():
    state = state_of({"temperature": 0.5}, {"temperature": 2.0})
    x = logits(2)
    found = candidates_of(x, [0, 1], state)
    assert found.ids is None and found.scores is x
    expected = np.exp((x.double() - x.amax(-1, keepdim=True)).numpy() / np.array([[0.5], [2.0]]))
    np.testing.assert_allclose(found.weights.numpy(), expected, rtol=1e-12)


def test_candidates_are_as_many_as_the_largest_top_k():
    """Ascending ids; a smaller k leaves the others without weight."""
    state = state_of({"top_k": 2}, {"top_k": 5})
    found = candidates_of(logits(2), [0, 1], state)
    assert found.ids is not None and found.ids.shape == found.weights.shape == (2, 5)
    assert bool((found.ids[1, 1:] > found.ids[1, :-1]).all())
    assert (found.weights > 0).sum(-1).tolist() == [2, 5]


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [3], [1, 3], [0, 2]])
def test_each_filter_applies_to_its_own_rows(rows: list[int]):
    parameters = [
        {"top_p": 0.5},
        {"min_p": 0.25},
        {"typical_p": 0.75, "top_p": 0.75},
        {},
    ]
    state = state_of(*parameters)
    x = logits(4)[rows]
    found = candidates_of(x, rows, state)
    weights = found.weights.clone()
    for each in filters_of(state):
        each.apply(found)
    for at, row in enumerate(rows):
        one, score, values = weights[at : at + 1], x[at : at + 1], parameters[row]
        if "top_p" in values:
            one = top_mass(score, one, torch.tensor([values["top_p"]], dtype=torch.float64))
        if "min_p" in values:
            one = min_p(one, torch.tensor([values["min_p"]], dtype=torch.float64))
        if "typical_p" in values:
            one = typical_p(one, torch.tensor([values["typical_p"]], dtype=torch.float64))
        assert torch.equal(found.weights[at], one[0])
