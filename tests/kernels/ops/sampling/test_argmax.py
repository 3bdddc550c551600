"""Greedy choice."""

import pytest
import torch

from kernels.ops.sampling.argmax import argmax, argmax_reference
from tests.kernels.sampling_inputs import SHAPES, tied_logits


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
