"""A factor and a soft cap of logits, against float64."""

import math

import pytest
import torch

from kernels.ops.layers.norms import adjust_logits
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.tolerances import assert_close, random


@pytest.mark.parametrize("scale", [0.0625, 1.0, 3.0])
def test_formula(scale: float):
    logits = random(4, 33, dtype=torch.float32, scale=20)
    before, numbers = logits.clone(), logits.double().flatten().tolist()
    exact = torch.tensor([x * scale for x in numbers], dtype=torch.float64).view(4, 33)
    assert_close(adjust_logits(logits, scale, None), exact, 0, 1e-7)
    for cap in (0.5, 30.0):
        exact = torch.tensor([cap * math.tanh(x * scale / cap) for x in numbers], dtype=torch.float64).view(
            4, 33
        )
        assert_close(adjust_logits(logits, scale, cap), exact, 2e-7 * cap, 1e-6)
    assert torch.equal(logits, before)


def test_infinite_logits_become_the_cap():
    logits = torch.tensor([[torch.inf, -torch.inf, torch.nan]])
    assert adjust_logits(logits, 2.0, 5.0)[0, :2].tolist() == [5, -5]
    assert adjust_logits(logits, 2.0, None)[0, :2].tolist() == [torch.inf, -torch.inf]
    assert adjust_logits(logits, 2.0, 5.0)[0, 2].isnan()


def test_rows_are_independent():
    assert_rows_are_independent(lambda x: adjust_logits(x, 0.3, 2.0), random(7, 19, dtype=torch.float32))
