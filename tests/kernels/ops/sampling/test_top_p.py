"""The smallest set that reaches a share."""

from unittest.mock import patch

import pytest
import torch

from kernels.ops.sampling import filters as module
from kernels.ops.sampling.filters import top_p
from tests.kernels.references.sampling import top_p_reference
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.sampling_inputs import SHAPES, smooth_logits, spread, tied_logits, weights_of


@pytest.mark.parametrize(("a", "w"), [*SHAPES, (3, 9000)])
@pytest.mark.parametrize("make", [tied_logits, smooth_logits])
def test_equals_reference(a: int, w: int, make: type) -> None:
    """Bit for bit, whichever of its tries decides."""
    scores = make(a, w)
    weights, share = weights_of(scores), spread(a, 0.05, 0.999)
    assert torch.equal(top_p(scores, weights, share), top_p_reference(scores, weights, share))


def test_tries_agree() -> None:
    """The result of a row does not depend on how far the other rows of its batch made it look."""
    scores = smooth_logits(4, 3000)
    weights, share = weights_of(scores), spread(4, 0.2, 0.999)
    with patch.object(module, "FIRST_WIDTH", 3000):
        sorted_at_once = top_p(scores, weights, share)
    for first in (1, 16, 300):
        with patch.object(module, "FIRST_WIDTH", first):
            assert torch.equal(top_p(scores, weights, share), sorted_at_once)


def test_borders() -> None:
    """Reaching is enough, at least one is kept, equals fall by their ids."""
    scores, weights = torch.zeros(4, 4), torch.ones(4, 4, dtype=torch.float64)
    share = torch.tensor([0.5, 1e-45, 0.51, 0.0], dtype=torch.float64)
    kept = top_p(scores, weights, share)
    assert kept.tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]]


def test_rows_are_independent() -> None:
    scores = smooth_logits(6, 700)
    assert_rows_are_independent(top_p, scores, weights_of(scores), spread(6, 0.1, 0.999))


@pytest.mark.parametrize("make", [tied_logits, smooth_logits])
def test_the_set_is_the_smallest(make: type) -> None:
    """It reaches the share, and without its last member it does not."""
    scores = make(5, 300)
    weights, share = weights_of(scores), spread(5, 0.1, 0.95)
    for row, kept in enumerate(top_p(scores, weights, share)):
        target = share[row] * weights[row].sum()
        assert kept.sum() >= target * (1 - 1e-12)
        if kept.count_nonzero() > 1:
            assert kept.sum() - kept[kept > 0].min() < target * (1 + 1e-12)


def test_scores_and_weights_may_differ() -> None:
    """The order is that of the scores (typical_p ranks by distance), the sum that of the weights."""
    scores = torch.tensor([[3.0, 2.0, 1.0]])
    weights = torch.tensor([[0.1, 0.2, 0.7]], dtype=torch.float64)
    assert top_p(scores, weights, torch.tensor([0.25], dtype=torch.float64)).tolist() == [[0.1, 0.2, 0.0]]
