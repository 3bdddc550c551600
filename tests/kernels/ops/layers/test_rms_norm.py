"""rms_norm and add_rms_norm against float64."""

import pytest
import torch

from kernels.ops.layers.norms import add_rms_norm, rms_norm, rms_norm_reference
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.tolerances import DTYPES, TOLERANCES, assert_close, random

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
    expected = rms_norm_reference(x + residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    assert_close(normed, expected.double(), 2 * absolute, 2 * relative)


@pytest.mark.parametrize(("dtype", "absolute", "relative"), TOLERANCES)
@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 576, 4099])
def test_widths(width: int, dtype: torch.dtype, absolute: float, relative: float):
    """Widths around and far from multiples of the vector width."""
    x, weight = random(3, width, dtype=dtype), random(width, dtype=dtype, seed=1)
    exact = rms_norm_reference(x.double(), weight.double(), 1e-6)
    assert_close(rms_norm(x, weight, 1e-6), exact, 2 * absolute, 2 * relative)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_rows(dtype: torch.dtype):
    x, weight = random(0, 48, dtype=dtype), random(48, dtype=dtype)
    assert rms_norm(x, weight, 1e-6).shape == (0, 48)
    assert [part.shape for part in add_rms_norm(x, x, weight, 1e-6)] == [(0, 48)] * 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_zeros_is_zero(dtype: torch.dtype):
    """eps keeps the root from zero."""
    x = torch.zeros(2, 16, dtype=dtype)
    assert not rms_norm(x, torch.ones(16, dtype=dtype), 1e-6).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_independent(dtype: torch.dtype):
    weight = random(123, dtype=dtype, seed=2)
    x, residual = (random(9, 123, dtype=dtype, seed=seed) for seed in (3, 4))
    assert_rows_are_independent(lambda x: rms_norm(x, weight, 1e-5), x)
    assert_rows_are_independent(lambda x, r: add_rms_norm(x, r, weight, 1e-5), x, residual)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_rows(dtype: torch.dtype):
    """A view of a fused projection gives what its copy gives; the inputs stay as they are."""
    fused, weight = random(5, 3 * 32, dtype=dtype), random(32, dtype=dtype, seed=1)
    view, before = fused[:, 32:64], fused.clone()
    assert torch.equal(rms_norm(view, weight, 1e-5), rms_norm(view.contiguous(), weight, 1e-5))
    add_rms_norm(view, view, weight, 1e-5)
    assert torch.equal(fused, before)


def test_what_is_broken_stays_in_its_row():
    x = torch.ones(3, 8)
    x[1, 2], x[2, 0] = torch.nan, torch.inf
    result = rms_norm(x, torch.ones(8), 1e-6)
    assert result[0].isfinite().all() and result[1].isnan().all() and not result[2].isfinite().all()
