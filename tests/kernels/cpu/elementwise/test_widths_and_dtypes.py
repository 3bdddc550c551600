"""The row kernels in both dtypes, on rows that end within a vector, against float64."""

import pytest
import torch

from kernels.cpu_ops import CpuOps
from kernels.ops.layers.activation import clamped_swiglu
from kernels.ops.layers.norms import rms_norm_reference
from tests.kernels.references.layers import (
    activation_reference,
    gated_activation_reference,
    layer_norm_reference,
    rotary_reference,
)
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels

ROWS = 7
TOLERANCES = {torch.bfloat16: 2**-8 + 3e-4, torch.float32: 3e-6}
WIDTHS = pytest.mark.parametrize("width", [1, 8, 15, 16, 17, 100, 577])


@pytest.fixture(params=TOLERANCES, ids=["bfloat16", "float32"])
def kernels(request: pytest.FixtureRequest) -> CpuOps:
    return CpuOps(request.param)


def assert_near(result: torch.Tensor, exact: torch.Tensor) -> None:
    """To a rounding of the result's dtype."""
    tolerance = TOLERANCES[result.dtype]
    torch.testing.assert_close(result.double(), exact, rtol=tolerance, atol=tolerance)


@WIDTHS
def test_norms(kernels: CpuOps, width: int):
    x, residual = (random(ROWS, width, dtype=kernels.dtype, seed=seed) for seed in (0, 1))
    weight, bias = (random(width, dtype=kernels.dtype, seed=seed) for seed in (2, 3))
    normed, total = kernels.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert_near(normed, rms_norm_reference(total.double(), weight.double(), 1e-5))
    normed, total = kernels.add_layer_norm(x, residual, weight, bias, 1e-5)
    assert torch.equal(total, x + residual)
    assert_near(normed, layer_norm_reference(total.double(), weight.double(), bias.double(), 1e-5))


@WIDTHS
def test_activations(kernels: CpuOps, width: int):
    gate_up = random(ROWS, 2 * width, dtype=kernels.dtype, scale=5)
    for name in ("silu", "gelu_new", "gelu"):
        exact = gated_activation_reference(gate_up.double(), name)
        assert_near(kernels.gated_activation(gate_up, name), exact)
    added = kernels.scaled_add(gate_up, gate_up.flip(0), 0.5)
    assert_near(added, gate_up.double() * 0.5 + gate_up.flip(0).double())
    for name in ("relu", "gelu_new", "quick_gelu", "gelu"):
        result = kernels.activation(gate_up, name)
        assert_near(result, activation_reference(gate_up.double(), name))
        assert torch.equal(kernels.activation(gate_up[3:4], name), result[3:4])


@WIDTHS
def test_clamped_swiglu(kernels: CpuOps, width: int):
    """Gates and values on both sides of the limit."""
    gate_up = random(ROWS, 2 * width, dtype=kernels.dtype, scale=5)
    result = kernels.clamped_swiglu(gate_up, 1.702, 7.0)
    assert_near(result, clamped_swiglu(gate_up.double(), 1.702, 7.0))
    assert torch.equal(kernels.clamped_swiglu(gate_up[3:4], 1.702, 7.0), result[3:4])


def test_silu_of_what_exp_cannot_hold():
    """In float32: e ** -x infinite, or 0."""
    gate = torch.tensor([-1e30, -200.0, -121.0, -104.0, -88.0, 0.0, 88.0, 200.0, 1e30, torch.inf, torch.nan])
    result = CpuOps(torch.float32).gated_activation(torch.cat((gate, torch.ones(11)))[None], "silu")[0]
    exact = gate.double() * torch.sigmoid(gate.double())
    torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-35, equal_nan=True)


@pytest.mark.parametrize("head_dim", [2, 8, 16, 24, 40, 72, 80, 96])
def test_rotary(kernels: CpuOps, head_dim: int):
    """In place; heads that are not rotated stay."""
    x = random(ROWS, 3, head_dim, dtype=kernels.dtype)
    angles, before = random(ROWS, head_dim // 2, dtype=torch.float32, seed=1, scale=50.0), x.clone()
    cos, sin = angles.cos(), angles.sin()
    cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    kernels.rotate(x[:, :2], cos, sin)
    assert_near(x[:, :2], rotary_reference(before[:, :2].double(), cos.double(), sin.double()))
    assert torch.equal(x[:, 2], before[:, 2])
