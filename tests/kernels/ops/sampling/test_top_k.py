"""top_k."""

import pytest
import torch

from kernels.ops.sampling.filters import top_k
from tests.kernels.references.sampling import top_k_reference
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


def test_rows_are_independent() -> None:
    """A row with a smaller k than its batch is padded, and its own candidates are those that it has alone."""
    logits, k = smooth_logits(6, 40), torch.tensor([1, 5, 40, 17, 2, 39])
    _, together = top_k(logits, k, 40)
    for row in range(6):
        count = int(k[row])
        ids, scores = top_k(logits[row : row + 1], k[row : row + 1], count)
        kept = together[row] > -torch.inf
        assert torch.equal(together[row][kept], scores[0]) and len(ids[0]) == count


@pytest.mark.parametrize("k", [1, 3])
def test_masked_logits_fill_up(k: int) -> None:
    """Where fewer than k tokens are possible, the rest has the score -inf."""
    logits = torch.full((1, 6), -torch.inf)
    logits[0, 4] = 2.0
    ids, scores = top_k(logits, torch.tensor([k]), k)
    assert ids.shape == scores.shape == (1, k)
    assert scores[scores > -torch.inf].tolist() == [2.0] and 4 in ids[0]


def test_the_logits_stay() -> None:
    logits = smooth_logits(2, 9)
    before = logits.clone()
    top_k(logits, torch.tensor([2, 3]), 3)
    assert torch.equal(logits, before)
