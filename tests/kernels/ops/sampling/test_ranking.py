"""Order of scores, equals by id."""

import pytest
import torch

from kernels.ops.sampling.ranking import SHORT, ranking, ranking_reference
from tests.kernels.sampling_inputs import SHAPES, smooth_logits, tied_logits


@pytest.mark.parametrize(("a", "w"), [*SHAPES, (2, SHORT + 1)])
@pytest.mark.parametrize("make", [tied_logits, smooth_logits])
def test_equals_reference(a: int, w: int, make: type) -> None:
    """All three ways: the first n, all of a short list, all of a long one."""
    scores = make(a, w)
    for n in {1, (w + 1) // 2, w - 1, w} - {0}:
        assert torch.equal(ranking(scores, n), ranking_reference(scores, n))


def test_extremes() -> None:
    """Every kind of float32 in its place, the two zeros being equal."""
    tiny, huge = 1e-45, torch.finfo(torch.float32).max
    scores = torch.tensor([[-torch.inf, 0.0, huge, -tiny, tiny, -0.0, -huge, torch.inf, 0.0]])
    assert ranking(scores, 8).tolist() == [[7, 2, 4, 1, 5, 8, 3, 6]]
    assert ranking(scores, 9).tolist() == [[7, 2, 4, 1, 5, 8, 3, 6, 0]]
