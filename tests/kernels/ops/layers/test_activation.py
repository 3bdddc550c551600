"""Activations, plain and gated."""

import pytest
import torch

from kernels.ops.layers.activation import ACTIVATIONS, activation, gated_activation
from tests.kernels.references.layers import activation_reference, gated_activation_reference
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.tolerances import DTYPES, TOLERANCES, assert_close, random


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
    assert activation(x, name).tolist() == activation_reference(x.double(), name).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("rows", "width"), [(0, 4), (1, 1), (3, 17), (2, 1031)])
def test_shapes(rows: int, width: int, name: str, dtype: torch.dtype):
    """No rows, one value, odd widths; the result is new memory of the same dtype."""
    gate_up = random(rows, 2 * width, dtype=dtype)
    before = gate_up.clone()
    result = gated_activation(gate_up, name)
    assert result.shape == (rows, width) and result.dtype == dtype
    assert activation(gate_up, name).shape == gate_up.shape
    assert torch.equal(gate_up, before)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "threads"), [(9, 37, 1), (2, 33, 1), (40, 1000, 2)])
def test_rows_are_independent(rows: int, width: int, threads: int, name: str, dtype: torch.dtype):
    """Also where torch's vectors end within a row, and where its threads' shares do."""
    torch.set_num_threads(threads)
    x = random(rows, 2 * width, dtype=dtype)
    assert_rows_are_independent(lambda x: gated_activation(x, name), x)
    assert_rows_are_independent(lambda x: activation(x, name), x)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_zero_and_nan(name: str):
    """f(0) = 0; NaN stays in its place, and the gate's NaN cannot be hidden by an up of 0."""
    x = torch.tensor([[0.0, -0.0, torch.nan, 1.0]])
    assert activation(x, name)[0, :2].tolist() == [0.0, 0.0]
    assert activation(x, name).isnan().tolist() == [[False, False, True, False]]
    gate_up = torch.tensor([[torch.nan, 1.0, 0.0, 0.0]])
    assert gated_activation(gate_up, name).isnan().tolist() == [[True, False]]


def test_gate_comes_before_up():
    """relu makes it visible: a negative gate closes, a negative up passes."""
    assert gated_activation(torch.tensor([[-1.0, 2.0, 5.0, -3.0]]), "relu").tolist() == [[0.0, -6.0]]
