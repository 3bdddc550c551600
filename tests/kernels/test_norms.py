"""rms_norm, add_rms_norm and layer_norm."""

import pytest
import torch

from kernels.ops.layers.layer_norm import layer_norm, layer_norm_reference
from kernels.ops.layers.rms_norm import add_rms_norm, add_rms_norm_reference, rms_norm, rms_norm_reference
from tests.kernels.tolerances import TOLERANCES, assert_close, random

SHAPES = [(1, 1), (1, 192), (7, 123), (3, 5, 16)]


@pytest.mark.parametrize(("dtype", "absolute", "relative"), TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_rms_norm(shape: tuple[int, ...], scale: float, dtype: torch.dtype, absolute: float, relative: float):
    """Small values too: eps then matters."""
    x, weight = random(*shape, dtype=dtype, scale=scale), random(shape[-1], dtype=dtype, seed=1)
    exact = rms_norm_reference(x.double(), weight.double(), 1e-5)
    assert_close(rms_norm(x, weight, 1e-5), exact, 2 * absolute, 2 * relative)
    assert_close(rms_norm_reference(x, weight, 1e-5), exact, absolute, relative)


@pytest.mark.parametrize(("dtype", "absolute", "relative"), TOLERANCES)
def test_add_rms_norm(dtype: torch.dtype, absolute: float, relative: float):
    x, residual = random(7, 123, dtype=dtype), random(7, 123, dtype=dtype, seed=1)
    weight = random(123, dtype=dtype, seed=2)
    normed, total = add_rms_norm(x, residual, weight, 1e-6)
    expected, expected_total = add_rms_norm_reference(x, residual, weight, 1e-6)
    assert torch.equal(total, expected_total)
    assert_close(normed, expected.double(), 2 * absolute, 2 * relative)


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
