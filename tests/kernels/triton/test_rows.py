"""The Triton kernels that work row by row against the references of their operations in float64."""

import pytest
import torch

from kernels.ops.layers.activation import ACTIVATIONS, activation_reference, gated_activation_reference
from kernels.ops.layers.rms_norm import rms_norm_reference
from kernels.triton.elementwise.activation import KINDS, activation, gated_activation
from kernels.triton.elementwise.rms_norm import add_rms_norm, rms_norm
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.conftest import Where


@pytest.mark.parametrize("shape", [(1, 16), (3, 577), (2, 3, 96), (1, 5000), (0, 64)])
@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_rms_norm(where: Where, shape: tuple[int, ...], scale: float):
    """Widths that are no power of two; small values, for which eps matters."""
    x, residual = (random(*shape, dtype=where.dtype, scale=scale, seed=seed) for seed in (0, 1))
    weight = random(shape[-1], dtype=where.dtype, seed=2)
    on_device = [t.to(where.device) for t in (x, residual, weight)]
    alone = rms_norm(on_device[0], on_device[2], 1e-5).cpu()
    exact = rms_norm_reference(x.double(), weight.double(), 1e-5)
    assert_close(alone, exact, where.absolute, where.relative)
    normed, total = add_rms_norm(*on_device, 1e-5)
    assert torch.equal(total.cpu(), x + residual)
    exact = rms_norm_reference((x + residual).double(), weight.double(), 1e-5)
    assert_close(normed.cpu(), exact, where.absolute, where.relative)
    assert torch.equal(on_device[0].cpu(), x) and torch.equal(on_device[1].cpu(), residual)


@pytest.mark.parametrize("name", sorted(KINDS))
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 1031), (0, 8)])
def test_gated_activation(where: Where, rows: int, width: int, name: str):
    """Gated and plain; more than one program per row; a width that ends within one."""
    gate_up = random(rows, 2 * width, dtype=where.dtype, scale=3.0)
    exact = gated_activation_reference(gate_up.double(), name)
    result = gated_activation(gate_up.to(where.device), name)
    assert_close(result.cpu(), exact, 2 * where.absolute, where.relative)
    plain = activation(gate_up.to(where.device), name)
    assert_close(plain.cpu(), activation_reference(gate_up.double(), name), where.absolute, where.relative)


def test_all_activations_are_known():
    assert set(KINDS) == set(ACTIVATIONS)


def test_activations_of_what_exp_cannot_hold(where: Where):
    """x / (1 + exp(-x)) where exp(-x) is infinite or 0."""
    gate = torch.tensor([-3e4, -200.0, -100.0, -88.0, 0.0, -0.0, 20.0, 100.0, 3e4, torch.nan]).to(where.dtype)
    for name in sorted(KINDS):
        gate_up = torch.cat((gate, torch.ones_like(gate)))[None]
        result = gated_activation(gate_up.to(where.device), name)[0].cpu()
        exact = gated_activation_reference(gate_up.double(), name)[0]
        nan = exact.isnan()
        assert torch.equal(result.isnan(), nan) or name == "relu"
        torch.testing.assert_close(result.double()[~nan], exact[~nan], rtol=where.relative, atol=1e-6)
