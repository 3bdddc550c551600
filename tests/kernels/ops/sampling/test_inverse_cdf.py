"""Draws."""

import pytest
import torch

from kernels.ops.sampling.choose import inverse_cdf
from tests.kernels.references.sampling import inverse_cdf_reference
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.sampling_inputs import SHAPES, smooth_logits, spread, tied_logits, weights_of

LAST_BELOW_ONE = 1 - 2.0**-53


@pytest.mark.parametrize(("a", "w"), SHAPES)
@pytest.mark.parametrize("u", [0.0, 0.3, 0.999, LAST_BELOW_ONE])
def test_equals_reference(a: int, w: int, u: float) -> None:
    weights = weights_of(tied_logits(a, w))
    uniforms = spread(a, 0.0, u)
    assert torch.equal(inverse_cdf(weights, uniforms), inverse_cdf_reference(weights, uniforms))


def test_never_a_token_without_weight() -> None:
    """Zeros in front, between and behind, at both ends of u, whatever the sum's last bits are."""
    generator = torch.Generator().manual_seed(3)
    weights = torch.rand(64, 999, generator=generator, dtype=torch.float64) ** 9
    weights[torch.rand(64, 999, generator=generator) < 0.9] = 0.0
    weights[:, :5], weights[:, -5:] = 0.0, 0.0
    for u in (0.0, 0.5, LAST_BELOW_ONE):
        drawn = inverse_cdf(weights, torch.full((64,), u, dtype=torch.float64))
        assert bool((weights.gather(1, drawn[:, None]) > 0).all())


def test_subnormal_weights() -> None:
    """u times the sum rounds up to the sum here: still the last token with a weight, and no index beyond."""
    weights = torch.tensor([[0.0, 5e-324, 0.0]], dtype=torch.float64)
    u = torch.tensor([LAST_BELOW_ONE], dtype=torch.float64)
    assert inverse_cdf(weights, u).tolist() == inverse_cdf_reference(weights, u).tolist() == [1]


def test_large_vocabulary() -> None:
    """152,000 equal weights: every token is drawn by its own 1/152,000 of the uniform numbers."""
    vocabulary = 152_000
    tokens = torch.tensor([0, 1, 77_777, vocabulary - 1])
    u = (tokens.double() + 0.5) / vocabulary
    assert torch.equal(inverse_cdf(torch.ones(4, vocabulary, dtype=torch.float64), u), tokens)


def test_no_token() -> None:
    """No weight at all, or a broken one."""
    weights = torch.tensor([[0.0, 0.0], [torch.nan, 1.0], [0.0, 1.0]], dtype=torch.float64)
    u = torch.full((3,), 0.5, dtype=torch.float64)
    assert inverse_cdf(weights, u).tolist() == inverse_cdf_reference(weights, u).tolist() == [-1, -1, 1]


def test_rows_are_independent() -> None:
    assert_rows_are_independent(inverse_cdf, weights_of(tied_logits(7, 500)), spread(7, 0.0, 0.999))


def test_the_border_belongs_to_the_next() -> None:
    """u times the whole equal to a cumulative sum draws the index behind it."""
    weights = torch.ones(4, 4, dtype=torch.float64)
    u = torch.tensor([0.0, 0.25, 0.5, 0.75], dtype=torch.float64)
    assert inverse_cdf(weights, u).tolist() == [0, 1, 2, 3]


def test_padding_by_zeros_changes_nothing() -> None:
    """As many as a row of another batch needs: sums are added from the left."""
    weights, u = weights_of(smooth_logits(5, 77)), spread(5, 0.01, 0.99)
    padded = torch.cat((weights, torch.zeros(5, 900, dtype=torch.float64)), -1)
    assert torch.equal(inverse_cdf(padded, u), inverse_cdf(weights, u))


def test_frequencies_are_the_weights() -> None:
    """Over a grid of u each index is drawn as often as its weight says."""
    weights = torch.tensor([[0.1, 0.0, 0.4, 0.5]], dtype=torch.float64)
    u = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    drawn = inverse_cdf(weights.expand(1000, 4), u)
    assert torch.bincount(drawn, minlength=4).tolist() == [100, 0, 400, 500]
