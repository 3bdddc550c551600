"""Greedy choice."""

import pytest
import torch

from kernels.ops.sampling.choose import argmax
from tests.kernels.references.sampling import argmax_reference
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.sampling_inputs import SHAPES, smooth_logits, tied_logits


@pytest.mark.parametrize(("a", "w"), SHAPES)
def test_equals_reference(a: int, w: int) -> None:
    logits = tied_logits(a, w)
    assert torch.equal(argmax(logits), argmax_reference(logits))


def test_lowest_id_on_ties() -> None:
    """Across the vector width of the reduction, too."""
    logits = torch.zeros(2, 100_000)
    logits[1, 77_777:] = 1.0
    assert argmax(logits).tolist() == [0, 77_777]


def test_no_token() -> None:
    """A row with NaN or +inf, or with nothing above -inf, has none; its neighbours are not touched."""
    inf, nan = torch.inf, torch.nan
    logits = torch.tensor([[0.0, nan, 1.0], [-inf] * 3, [inf, 0.0, 0.0], [nan] * 3, [-inf, 5.0, -inf]])
    assert argmax(logits).tolist() == [-1, -1, -1, -1, 1]
    assert argmax_reference(logits).tolist() == [-1, -1, -1, -1, 1]


@pytest.mark.parametrize("make", [tied_logits, smooth_logits])
def test_rows_are_independent(make: type) -> None:
    assert_rows_are_independent(argmax, make(9, 1031))


def test_no_rows() -> None:
    assert argmax(torch.empty(0, 5)).shape == (0,)


def test_zeros_of_both_signs_are_equal() -> None:
    assert argmax(torch.tensor([[-0.0, 0.0], [0.0, -0.0]])).tolist() == [0, 0]
