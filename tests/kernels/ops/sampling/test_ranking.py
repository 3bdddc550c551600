"""Order of scores, equals by id."""

import pytest
import torch

from kernels.ops.sampling.logprobs import PARTS, SHORT, ranking, ranking_reference
from tests.kernels.rows import assert_rows_are_independent
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


@pytest.mark.parametrize("make", [tied_logits, smooth_logits])
@pytest.mark.parametrize("n", [1, 20, 50])
def test_rows_are_independent(make: type, n: int) -> None:
    assert_rows_are_independent(lambda scores: ranking(scores, n), make(7, 50))


def test_no_rows() -> None:
    for width in (9, 2 * SHORT):
        assert ranking(torch.empty(0, width), 4).shape == (0, 4)


def test_all_equal() -> None:
    """The order of the ids, in each of the three ways."""
    for width, n in ((9, 4), (9, 9), (SHORT + 3, SHORT + 3)):
        assert ranking(torch.zeros(2, width), n).tolist() == [list(range(n))] * 2


@pytest.mark.parametrize("n", [1, 5, 60])
def test_rows_with_equals_beside_rows_without(n: int) -> None:
    """Also equals of which the last one is among the first n, and the next is not; zeros of both signs."""
    scores = torch.cat((smooth_logits(3, 200), tied_logits(3, 200), smooth_logits(2, 200)))
    order = scores[6].argsort(descending=True)
    scores[6, order[n]] = scores[6, order[n - 1]]
    scores[7] = -scores[7].abs()
    scores[7, 9], scores[7, 4] = 0.0, -0.0
    assert torch.equal(ranking(scores, n), ranking_reference(scores, n))


@pytest.mark.parametrize("width", [SHORT - 1, SHORT, SHORT + 37, 3 * SHORT])
@pytest.mark.parametrize("n", [1, 5, 20, 100])
def test_a_few_of_a_long_list(width: int, n: int) -> None:
    """The first ones anywhere: all in one part, one in each, behind the last whole part; with equals, and
    with scores that are none."""
    scores = torch.cat((smooth_logits(4, width), tied_logits(2, width)))
    scores[0, width // PARTS : width // PARTS + 60] += 100
    scores[1, :: width // PARTS] += 100
    scores[2, -40:] += 100
    scores[3, width // 2] = scores[3].max()
    assert torch.equal(ranking(scores, n), ranking_reference(scores, n))
    scores[3, ::2] = -torch.inf
    assert torch.equal(ranking(scores, n), ranking_reference(scores, n))
