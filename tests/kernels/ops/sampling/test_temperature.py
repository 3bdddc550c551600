"""Weights."""

import math

import pytest
import torch

from kernels.ops.sampling.filters import temperature_weights
from tests.kernels.references.sampling import temperature_weights_reference
from tests.kernels.sampling_inputs import SHAPES, smooth_logits, spread, tied_logits


@pytest.mark.parametrize(("a", "w"), SHAPES)
@pytest.mark.parametrize("make", [tied_logits, smooth_logits])
def test_equals_reference(a: int, w: int, make: type) -> None:
    logits = make(a, w)
    arguments = logits, logits.amax(-1), spread(a, 0.1, 2.0)
    torch.testing.assert_close(
        temperature_weights(*arguments), temperature_weights_reference(*arguments), rtol=1e-14, atol=0
    )


def test_extremes() -> None:
    """The smallest and largest float32 as temperature and as logit: 0 or 1, never NaN."""
    huge = torch.finfo(torch.float32).max
    scores = torch.tensor([[-huge, huge, 0.0, -torch.inf]] * 2)
    temperature = torch.tensor([1e-45, 1.0], dtype=torch.float64)
    weights = temperature_weights(scores, scores.amax(-1), temperature)
    assert weights.tolist() == [[0.0, 1.0, 0.0, 0.0]] * 2


@pytest.mark.parametrize("w", [1, 2, 5, 1023, 33_333])
def test_bitwise_independent_of_the_batch(w: int) -> None:
    """A vectorized exponential may treat the ends of a chunk in another way: then this fails."""
    logits = smooth_logits(9, w)
    temperature = spread(9, 0.3, 1.7)
    together = temperature_weights(logits, logits.amax(-1), temperature)
    for a in range(9):
        row = logits[a : a + 1].clone()
        assert torch.equal(temperature_weights(row, row.amax(-1), temperature[a : a + 1])[0], together[a])


def test_the_formula() -> None:
    """exp(-1) at 1, exp(-2) at a half; the largest has the weight 1 at every temperature."""
    scores = torch.tensor([[3.0, 2.0]] * 2)
    weights = temperature_weights(scores, scores.amax(-1), torch.tensor([1.0, 0.5], dtype=torch.float64))
    expected = torch.tensor([[1.0, math.exp(-1)], [1.0, math.exp(-2)]], dtype=torch.float64)
    torch.testing.assert_close(weights, expected, rtol=1e-15, atol=0)


def test_candidates_are_relative_to_the_whole_row() -> None:
    """The largest logit may not be among the scores: all weights are below 1 then."""
    scores = torch.tensor([[1.0, 0.0]])
    weights = temperature_weights(scores, torch.tensor([2.0]), torch.ones(1, dtype=torch.float64))
    assert weights[0, 0] == math.exp(-1) and weights.max() < 1


def test_rows_that_are_no_distribution() -> None:
    """Weights that no draw accepts: NaN or 0, never a positive number."""
    scores = torch.tensor([[torch.nan, 1.0], [torch.inf, 1.0], [-torch.inf, -torch.inf]])
    weights = temperature_weights(scores, scores.amax(-1), torch.ones(3, dtype=torch.float64))
    assert not (weights > 0).any()


def test_no_rows() -> None:
    empty = torch.empty(0, dtype=torch.float64)
    assert temperature_weights(torch.empty(0, 5), torch.empty(0), empty).shape == (0, 5)
