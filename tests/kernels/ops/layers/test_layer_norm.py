"""layer_norm against float64."""

import pytest
import torch

from kernels.ops.layers.norms import layer_norm
from tests.kernels.references.layers import layer_norm_reference
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.tolerances import DTYPES, TOLERANCES, assert_close, random

SHAPES = [(1, 1), (1, 192), (7, 123), (3, 5, 16)]


@pytest.mark.parametrize(("dtype", "absolute", "relative"), TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(
    shape: tuple[int, ...], affine: bool, dtype: torch.dtype, absolute: float, relative: float
):
    x = random(*shape, dtype=dtype, scale=3.0)
    weight, bias = (random(shape[-1], dtype=dtype, seed=s) if affine else None for s in (1, 2))
    wide = [None if p is None else p.double() for p in (weight, bias)]
    exact = layer_norm_reference(x.double(), *wide, 1e-5)
    assert_close(layer_norm(x, weight, bias, 1e-5), exact, 2 * absolute, 2 * relative)
    assert_close(layer_norm_reference(x, weight, bias, 1e-5), exact, 2 * absolute, 2 * relative)


@pytest.mark.parametrize(("dtype", "absolute", "relative"), TOLERANCES)
@pytest.mark.parametrize("shift", [0.0, 50.0])
def test_a_mean_far_from_zero(shift: float, dtype: torch.dtype, absolute: float, relative: float):
    """The mean is subtracted before squares are summed, or a shift would cost all digits."""
    x = (random(4, 200, dtype=torch.float32) + shift).to(dtype)
    exact = layer_norm_reference(x.double(), None, None, 1e-5)
    assert_close(layer_norm(x, None, None, 1e-5), exact, 20 * absolute, 2 * relative)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_constant_row_is_its_bias(dtype: torch.dtype):
    x, bias = torch.full((2, 32), 3.0, dtype=dtype), random(32, dtype=dtype)
    assert torch.equal(layer_norm(x, torch.ones(32, dtype=dtype), bias, 1e-5), bias.expand(2, 32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_rows(dtype: torch.dtype):
    assert layer_norm(random(0, 8, dtype=dtype), None, None, 1e-5).shape == (0, 8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_independent(dtype: torch.dtype):
    weight, bias = (random(77, dtype=dtype, seed=seed) for seed in (1, 2))
    assert_rows_are_independent(
        lambda x: layer_norm(x, weight, bias, 1e-5), random(9, 77, dtype=dtype, seed=3)
    )
