"""Ranks of given tokens: their places in the ranking."""

import pytest
import torch

from kernels.ops.sampling.logprobs import ranking, token_ranks
from tests.kernels.references.sampling import token_ranks_reference
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.sampling_inputs import SHAPES, smooth_logits, tied_logits


@pytest.mark.parametrize(("a", "v"), SHAPES)
@pytest.mark.parametrize("make", [tied_logits, smooth_logits])
def test_equals_reference(a: int, v: int, make: type) -> None:
    """Any tokens, the same one twice too."""
    tokens = torch.randint(v, (a, 3), generator=torch.Generator().manual_seed(1))
    scores = make(a, v)
    assert torch.equal(token_ranks(scores, tokens), token_ranks_reference(scores, tokens))


@pytest.mark.parametrize("make", [tied_logits, smooth_logits])
def test_is_the_place_in_the_ranking(make: type) -> None:
    scores = make(3, 50)
    ranks = token_ranks(scores, ranking(scores, 50))
    assert ranks.tolist() == [list(range(1, 51))] * 3


def test_no_tokens_and_nan() -> None:
    """Nothing asked, nothing answered; NaN does no harm."""
    assert token_ranks(torch.zeros(2, 5), torch.empty(2, 0, dtype=torch.int64)).shape == (2, 0)
    assert token_ranks(torch.tensor([[torch.nan, 1.0]]), torch.tensor([[0, 1]])).tolist() == [[1, 1]]


def test_equals_by_id() -> None:
    """Of equal scores the lower id ranks first; zeros of both signs are equal."""
    scores = torch.tensor([[1.0, 2.0, 1.0, -0.0, 0.0]])
    assert token_ranks(scores, torch.arange(5)[None]).tolist() == [[2, 1, 3, 4, 5]]


def test_rows_are_independent() -> None:
    tokens = torch.randint(40, (7, 2), generator=torch.Generator().manual_seed(2))
    assert_rows_are_independent(token_ranks, tied_logits(7, 40), tokens)


def test_no_rows() -> None:
    assert token_ranks(torch.empty(0, 5), torch.empty(0, 2, dtype=torch.int64)).shape == (0, 2)
