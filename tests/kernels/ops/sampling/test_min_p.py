"""min_p."""

import pytest
import torch

from kernels.ops.sampling.min_p import min_p, min_p_reference
from tests.kernels.sampling_inputs import SHAPES, spread, tied_logits, weights_of


@pytest.mark.parametrize(("a", "w"), SHAPES)
def test_equals_reference(a: int, w: int) -> None:
    weights, share = weights_of(tied_logits(a, w)), spread(a, 0.0, 1.0)
    assert torch.equal(min_p(weights, share), min_p_reference(weights, share))
