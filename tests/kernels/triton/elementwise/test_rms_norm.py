"""RMS norm in Triton against its reference in float64."""

import pytest
import torch

from kernels.ops.layers.norms import rms_norm_reference
from kernels.triton.elementwise.rms_norm import LARGEST_WIDTH, add_rms_norm, rms_norm
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.conftest import Where


@pytest.mark.parametrize("shape", [(1, 16), (3, 577), (2, 3, 96), (1, 5000), (0, 64)])
@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_rms_norm(where: Where, shape: tuple[int, ...], scale: float):
    """Widths that are no power of two; small values, for which eps matters."""
    x, residual = (random(*shape, dtype=where.dtype, scale=scale, seed=seed) for seed in (0, 1))
    weight = random(shape[-1], dtype=where.dtype, seed=2)
    on_device = [t.clone().to(where.device) for t in (x, residual, weight)]
    alone = rms_norm(on_device[0], on_device[2], 1e-5).cpu()
    exact = rms_norm_reference(x.double(), weight.double(), 1e-5)
    assert_close(alone, exact, where.absolute, where.relative)
    normed, total = add_rms_norm(*on_device, 1e-5)
    assert torch.equal(total.cpu(), x + residual)
    exact = rms_norm_reference((x + residual).double(), weight.double(), 1e-5)
    assert_close(normed.cpu(), exact, where.absolute, where.relative)
    assert torch.equal(on_device[0].cpu(), x) and torch.equal(on_device[1].cpu(), residual)


def test_an_offset_and_a_factor(where: Where):
    """Weights stored as their distance from 1, and a residual stream that grows by a half of x."""
    x, residual = (random(3, 48, dtype=where.dtype, seed=seed) for seed in (0, 1))
    weight = random(48, dtype=where.dtype, scale=0.1, seed=2)
    on_device = [tensor.to(where.device) for tensor in (x, residual, weight)]
    alone = rms_norm(on_device[0], on_device[2], 1e-5, 1.0).cpu()
    exact = rms_norm_reference(x.double(), weight.double(), 1e-5, 1.0)
    assert_close(alone, exact, where.absolute, where.relative)
    normed, total = (tensor.cpu() for tensor in add_rms_norm(*on_device, 1e-5, 1.0, 0.5))
    assert_close(total, x.double() * 0.5 + residual.double(), where.absolute, where.relative)
    exact = rms_norm_reference(total.double(), weight.double(), 1e-5, 1.0)
    assert_close(normed, exact, where.absolute, where.relative)


def test_rows_are_independent(where: Where):
    """A row alone, among others and in another order: the same bits, with the residual and without."""
    weight = random(577, dtype=where.dtype, seed=2).to(where.device)
    x, residual = (random(5, 577, dtype=where.dtype, seed=seed).to(where.device) for seed in (3, 4))
    assert_rows_are_independent(lambda x: rms_norm(x, weight, 1e-5), x)
    assert_rows_are_independent(lambda x, r: add_rms_norm(x, r, weight, 1e-5), x, residual)


def test_a_row_of_zeros_is_zero(where: Where):
    x = torch.zeros(2, 48, dtype=where.dtype, device=where.device)
    assert not rms_norm(x, torch.ones_like(x[0]), 1e-6).any()


def test_what_is_broken_stays_in_its_row(where: Where):
    x = torch.ones(3, 16, dtype=where.dtype, device=where.device)
    x[1, 2], x[2, 0] = torch.nan, torch.inf
    result = rms_norm(x, torch.ones_like(x[0]), 1e-6).cpu()
    assert result[0].isfinite().all() and result[1].isnan().all() and not result[2].isfinite().all()


@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 513])
def test_widths(where: Where, width: int):
    """Around powers of two, with what stands behind a row in memory: the next one, here of large numbers."""
    x = torch.full((2, width), 1e3, dtype=where.dtype)
    x[0] = random(width, dtype=where.dtype)
    weight = random(width + 8, dtype=where.dtype, seed=1)[:width].contiguous()
    result = rms_norm(x.to(where.device), weight.to(where.device), 1e-5).cpu()
    exact = rms_norm_reference(x.double(), weight.double(), 1e-5)
    assert_close(result, exact, 2 * where.absolute, 2 * where.relative)


def test_columns_of_a_wider_tensor(where: Where):
    """Rows that are not contiguous are copied first."""
    wide = random(3, 40, dtype=where.dtype).to(where.device)
    weight = torch.ones(16, dtype=where.dtype, device=where.device)
    view = wide[:, 8:24]
    expected = rms_norm(view.contiguous(), weight, 1e-5)
    assert torch.equal(rms_norm(view, weight, 1e-5), expected)
    normed, total = add_rms_norm(view, view, weight, 1e-5)
    again = add_rms_norm(view.contiguous(), view.contiguous(), weight, 1e-5)
    assert torch.equal(normed, again[0]) and torch.equal(total, again[1])


def test_a_row_that_is_too_wide(where: Where):
    x = torch.zeros(1, LARGEST_WIDTH + 1, dtype=where.dtype, device=where.device)
    with pytest.raises(AssertionError):
        rms_norm(x, x[0], 1e-5)
