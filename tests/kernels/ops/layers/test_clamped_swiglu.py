"""The gated activation of gpt-oss against its formula in float64, on both sides of its limits."""

import math

import pytest
import torch

from kernels.ops.layers.activation import clamped_swiglu
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.tolerances import TOLERANCES, assert_close, random


def exact(gate: float, up: float, alpha: float, limit: float) -> float:
    gate, up = min(gate, limit), max(-limit, min(up, limit))
    return (up + 1) * gate / (1 + math.exp(-alpha * gate))


@pytest.mark.parametrize(("dtype", "absolute", "relative"), TOLERANCES)
@pytest.mark.parametrize(("alpha", "limit"), [(1.702, 7.0), (1.0, 0.5)])
def test_formula(dtype: torch.dtype, absolute: float, relative: float, alpha: float, limit: float):
    """A gate is not held from below: -100 stays."""
    edges = torch.tensor([[-100.0, limit, limit + 1, 0.0, 3.0, -limit, -limit - 1, limit, limit + 1, 0.0]])
    gate_up = torch.cat((edges.to(dtype), random(6, 10, dtype=dtype, scale=5)))
    expected = [
        [exact(row[i], row[5 + i], alpha, limit) for i in range(5)] for row in gate_up.double().tolist()
    ]
    assert_close(
        clamped_swiglu(gate_up, alpha, limit), torch.tensor(expected, dtype=torch.float64), absolute, relative
    )


def test_nan_stays_and_infinity_is_held():
    gate_up = torch.tensor([[torch.nan, torch.inf, 1.0, 1.0, 1.0, torch.nan]])
    found = clamped_swiglu(gate_up, 1.0, 2.0)[0]
    assert found.isnan().tolist() == [True, False, True]
    assert found[1].item() == pytest.approx(exact(2.0, 1.0, 1.0, 2.0))


def test_rows_are_independent():
    assert_rows_are_independent(
        lambda x: clamped_swiglu(x, 1.702, 7.0), random(9, 34, dtype=torch.bfloat16, scale=5)
    )


def test_no_rows():
    assert clamped_swiglu(torch.zeros(0, 8), 1.0, 1.0).shape == (0, 4)
