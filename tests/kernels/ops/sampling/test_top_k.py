"""top_k."""

import pytest
import torch

from kernels.ops.sampling.top_k import top_k, top_k_reference
from tests.kernels.sampling_inputs import SHAPES, smooth_logits, tied_logits


@pytest.mark.parametrize(("a", "w"), SHAPES)
@pytest.mark.parametrize("make", [tied_logits, smooth_logits])
def test_equals_reference(a: int, w: int, make: type) -> None:
    """Rows with different k in one call; k = 1 and k = W among them."""
    logits = make(a, w)
    k = torch.linspace(1, w, a).long()
    n = int(k.max())
    ids, scores = top_k(logits, k, n)
    expected_ids, expected_scores = top_k_reference(logits, k, n)
    assert torch.equal(ids, expected_ids)
    assert torch.equal(scores, expected_scores)


def test_exactly_k_of_equals() -> None:
    """The lowest ids of those that tie at the border."""
    ids, scores = top_k(torch.tensor([[1.0, 0.0, 2.0, 1.0, 1.0]]), torch.tensor([3]), 3)
    assert ids.tolist() == [[0, 2, 3]]
    assert scores.tolist() == [[1.0, 2.0, 1.0]]
