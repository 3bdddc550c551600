"""typical_p."""

import pytest
import torch

from kernels.ops.sampling.filters import typical_p
from tests.kernels.references.sampling import typical_p_reference
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.sampling_inputs import SHAPES, smooth_logits, spread, tied_logits, weights_of


@pytest.mark.parametrize(("a", "w"), SHAPES)
@pytest.mark.parametrize("make", [tied_logits, smooth_logits])
def test_equals_reference(a: int, w: int, make: type) -> None:
    """Zero weights among them: they have no surprise to speak of and are never kept first."""
    weights, share = weights_of(make(a, w)), spread(a, 0.05, 0.95)
    assert torch.equal(typical_p(weights, share), typical_p_reference(weights, share))


def test_the_likeliest_may_go() -> None:
    """0.4 and six times 0.1: the entropy is 1.75, 0.1 has the surprise 2.30 and 0.4 has 0.92."""
    weights = torch.tensor([[0.4, *[0.1] * 6]], dtype=torch.float64)
    kept = typical_p(weights, torch.tensor([0.55], dtype=torch.float64))
    assert kept.count_nonzero().item() == 6
    assert kept[0, 0] == 0


def test_rows_are_independent() -> None:
    assert_rows_are_independent(typical_p, weights_of(smooth_logits(6, 90)), spread(6, 0.1, 0.95))


def test_equal_weights_fall_by_id() -> None:
    """All distances are 0: the first ids that reach the share stay."""
    weights = torch.ones(1, 8, dtype=torch.float64)
    kept = typical_p(weights, torch.tensor([0.5], dtype=torch.float64))
    assert kept.tolist() == [[1.0] * 4 + [0.0] * 4]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_weights_need_not_add_up_to_one(scale: float) -> None:
    """A factor moves no token in or out."""
    weights, share = weights_of(smooth_logits(4, 50)), spread(4, 0.2, 0.8)
    assert torch.equal(typical_p(weights * scale, share) > 0, typical_p(weights, share) > 0)


def test_one_token_is_kept() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    assert typical_p(weights, torch.tensor([0.9], dtype=torch.float64)).tolist() == [[0.0, 1.0, 0.0]]
