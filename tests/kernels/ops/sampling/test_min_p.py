"""min_p."""

import pytest
import torch

from kernels.ops.sampling.filters import min_p
from tests.kernels.references.sampling import min_p_reference
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.sampling_inputs import SHAPES, smooth_logits, spread, tied_logits, weights_of


@pytest.mark.parametrize(("a", "w"), SHAPES)
def test_equals_reference(a: int, w: int) -> None:
    weights, share = weights_of(tied_logits(a, w)), spread(a, 0.0, 1.0)
    assert torch.equal(min_p(weights, share), min_p_reference(weights, share))


def test_borders() -> None:
    """What equals the share stays; 0 keeps all, 1 keeps the largest ones alone."""
    weights = torch.tensor([[1.0, 0.5, 0.25, 0.0, 1.0]] * 3, dtype=torch.float64)
    kept = min_p(weights, torch.tensor([0.5, 0.0, 1.0], dtype=torch.float64))
    assert kept.tolist() == [[1.0, 0.5, 0, 0, 1.0], [1.0, 0.5, 0.25, 0, 1.0], [1.0, 0, 0, 0, 1.0]]


def test_the_input_stays() -> None:
    weights = weights_of(smooth_logits(2, 9))
    before = weights.clone()
    min_p(weights, spread(2, 0.1, 0.9))
    assert torch.equal(weights, before)


def test_rows_are_independent() -> None:
    assert_rows_are_independent(min_p, weights_of(tied_logits(7, 33)), spread(7, 0.0, 1.0))


def test_broken_weights_are_not_mended() -> None:
    """A NaN stays NaN or becomes 0, and nothing else gets a weight that it had not."""
    weights = torch.tensor([[torch.nan, 1.0], [0.0, 0.0]], dtype=torch.float64)
    kept = min_p(weights, torch.full((2,), 0.1, dtype=torch.float64))
    assert not (kept[0] > 1).any() and not kept[1].any()
