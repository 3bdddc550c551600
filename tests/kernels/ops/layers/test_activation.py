"""Activations, plain and gated."""

import pytest
import torch

from kernels.ops.layers.activation import (
    ACTIVATIONS,
    activation,
    activation_reference,
    gated_activation,
    gated_activation_reference,
)
from tests.kernels.tolerances import TOLERANCES, assert_close, random


@pytest.mark.parametrize(("dtype", "absolute", "relative"), TOLERANCES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_equals_reference(name: str, dtype: torch.dtype, absolute: float, relative: float):
    x = random(7, 2 * 31, dtype=dtype, scale=4.0)
    exact = activation_reference(x.double(), name)
    assert_close(activation(x, name), exact, absolute, relative)
    assert_close(activation_reference(x, name), exact, absolute, relative)
    gated = gated_activation_reference(x.double(), name)
    assert_close(gated_activation(x, name), gated, 2 * absolute, 2 * relative)
    assert gated_activation(x, name).shape == (7, 31)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_far_values(name: str):
    """No NaN where exponentials overflow."""
    x = torch.tensor([[-1e4, 0.0, 1e4]])
    assert activation(x, name).tolist() == [[0.0, 0.0, 1e4]]
