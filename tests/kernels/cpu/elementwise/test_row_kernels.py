"""The row kernels against the references of their operations in float64."""

import pytest
import torch

from kernels.cpu_ops import ACTIVATIONS, CpuOps
from kernels.ops.layers.norms import adjust_logits, rms_norm_reference
from tests.kernels.references.layers import (
    activation_reference,
    gated_activation_reference,
    layer_norm_reference,
    rotary_reference,
)
from tests.kernels.tolerances import assert_close, random

pytestmark = pytest.mark.cpu_kernels

BF16 = torch.bfloat16
ROUNDING = 2**-8
"""Of a result to bfloat16: computed in float32, it is rounded once."""
SILU = ROUNDING + 2**-12
"""Its exponential and its reciprocal are less exact than float32 (kernels.cpu.elementwise.activations)."""


@pytest.fixture(scope="module")
def kernels() -> CpuOps:
    return CpuOps(BF16)


@pytest.mark.parametrize("shape", [(1, 16), (1, 576), (7, 48), (3, 5, 32), (65, 576), (0, 64)])
@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_rms_norm(kernels: CpuOps, shape: tuple[int, ...], scale: float):
    """Few rows and many: on one thread and on all. Small values too: eps then matters."""
    x, residual = (random(*shape, dtype=BF16, scale=scale, seed=seed) for seed in (0, 1))
    weight = random(shape[-1], dtype=BF16, seed=2)
    alone = kernels.rms_norm(x, weight, 1e-5)
    assert_close(alone, rms_norm_reference(x.double(), weight.double(), 1e-5), 1e-7, ROUNDING)
    normed, total = kernels.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert_close(normed, rms_norm_reference(total.double(), weight.double(), 1e-5), 1e-7, ROUNDING)


def test_rms_norm_with_an_offset_and_a_factor(kernels: CpuOps):
    """Weights stored as their distance from 1, and a residual stream that grows by less than x."""
    x, residual = (random(7, 48, dtype=BF16, seed=seed) for seed in (0, 1))
    weight = random(48, dtype=BF16, scale=0.1, seed=2)
    alone = kernels.rms_norm(x, weight, 1e-5, 1.0)
    assert_close(alone, rms_norm_reference(x.double(), weight.double(), 1e-5, 1.0), 1e-7, ROUNDING)
    normed, total = kernels.add_rms_norm(x, residual, weight, 1e-5, 1.0, 0.22)
    assert_close(total, x.double() * 0.22 + residual.double(), 1e-7, ROUNDING)
    assert_close(normed, rms_norm_reference(total.double(), weight.double(), 1e-5, 1.0), 1e-7, ROUNDING)


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (5, 1536), (70, 512), (0, 32)])
@pytest.mark.parametrize("factor", [1.0, 0.22])
def test_scaled_add(kernels: CpuOps, rows: int, width: int, factor: float):
    x, y = (random(rows, width, dtype=BF16, seed=seed) for seed in (0, 1))
    assert_close(kernels.scaled_add(x, y, factor), x.double() * factor + y.double(), 1e-20, ROUNDING)
    assert_close(kernels.scaled_add(x, None, factor), x.double() * factor, 1e-20, ROUNDING)


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 17), (5, 319), (2, 4096), (0, 20)])
@pytest.mark.parametrize(("scale", "cap"), [(0.0625, None), (1.0, 30.0), (3.0, 0.5)])
def test_adjust_logits(kernels: CpuOps, rows: int, width: int, scale: float, cap: float | None):
    """Widths that are no multiple of 16 too."""
    logits = random(rows, width, dtype=torch.float32, scale=50.0)
    exact = adjust_logits(logits.double(), scale, cap)
    assert_close(kernels.adjust_logits(logits, scale, cap), exact, 1e-6 * (cap or 0), 2e-6)


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (5, 1536), (70, 512), (0, 32)])
@pytest.mark.parametrize("scale", [0.1, 4.0, 60.0])
@pytest.mark.parametrize("name", ["gelu_new", "gelu"])
def test_gated_gelu(kernels: CpuOps, rows: int, width: int, scale: float, name: str):
    gate_up = random(rows, 2 * width, dtype=BF16, scale=scale)
    exact = gated_activation_reference(gate_up.double(), name)
    assert_close(kernels.gated_activation(gate_up, name), exact, 1e-4, SILU)


def test_inputs_of_norms_stay(kernels: CpuOps):
    x, residual, weight = random(3, 32, dtype=BF16), random(3, 32, dtype=BF16, seed=1), random(32, dtype=BF16)
    before = x.clone(), residual.clone()
    kernels.rms_norm(x, weight, 1e-5)
    kernels.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (5, 1536), (70, 512), (0, 32)])
@pytest.mark.parametrize("scale", [0.1, 4.0, 60.0])
def test_gated_silu(kernels: CpuOps, rows: int, width: int, scale: float):
    gate_up = random(rows, 2 * width, dtype=BF16, scale=scale)
    exact = gated_activation_reference(gate_up.double(), "silu")
    assert_close(kernels.gated_activation(gate_up, "silu"), exact, 1e-20, SILU)
    halved = torch.cat((gate_up[:, :width] / 2, gate_up[:, width:]), dim=1)  # exactly
    assert torch.equal(
        kernels.gated_activation(gate_up, "silu", 0.5), kernels.gated_activation(halved, "silu")
    )


def test_silu_of_what_exp_cannot_hold(kernels: CpuOps):
    """x / (1 + e ** -x) where e ** -x is infinite or 0."""
    gate = torch.tensor([-1e30, -200.0, -100.0, -88.0, -20.0, 0.0, -0.0, 20.0, 88.0, 100.0, 1e30, 3.0])
    gate = torch.cat((gate, torch.tensor([1.0, torch.inf, torch.nan, 2.0]))).to(BF16)
    result = kernels.gated_activation(torch.cat((gate, torch.ones(16, dtype=BF16)))[None], "silu")[0]
    exact = gate.double() * torch.sigmoid(gate.double())
    torch.testing.assert_close(result.double(), exact, rtol=SILU, atol=1e-35, equal_nan=True)


def test_silu_of_every_value(kernels: CpuOps):
    """All numbers of bfloat16, NaN and infinities, times one that does not change them and one that does.
    Where e ** -x is infinite it is 0. -inf gives NaN, as the formula does."""
    gate = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(BF16)
    for factor in (1.0, -1.5234375):
        up = torch.full_like(gate, factor)
        result = kernels.gated_activation(torch.cat((gate, up))[None], "silu")[0].double()
        exact = gate.double() * torch.sigmoid(gate.double()) * factor
        exact = torch.where(exact.abs() > torch.finfo(BF16).max, exact.to(BF16).double(), exact)
        torch.testing.assert_close(result, exact, rtol=SILU, atol=1e-35, equal_nan=True)


@pytest.mark.parametrize(("tokens", "heads", "head_dim"), [(1, 1, 32), (3, 12, 64), (50, 12, 64), (0, 2, 32)])
def test_rotary(kernels: CpuOps, tokens: int, heads: int, head_dim: int):
    """In place, and beside values that stay as they are."""
    qkv = random(tokens, heads + 2, head_dim, dtype=BF16)
    before = qkv.clone()
    angles = random(tokens, head_dim // 2, dtype=torch.float32, seed=1, scale=50.0)
    cos, sin = angles.cos(), angles.sin()
    cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    exact = rotary_reference(before[:, :heads].double(), cos.double(), sin.double())
    result = kernels.rotate(qkv[:, :heads], cos, sin)
    assert result.data_ptr() == qkv.data_ptr()
    order = torch.arange(tokens).flip(0)
    assert torch.equal(kernels.rotate(before.clone()[:, :heads], cos.flip(0), sin.flip(0), order), result)
    assert_close(result, exact, 1e-6, ROUNDING)
    assert torch.equal(qkv[:, heads:], before[:, heads:])


def test_company_changes_nothing(kernels: CpuOps):
    """One thread or all: a row's result is bitwise the same."""
    x, residual, weight = (random(n, 576, dtype=BF16, seed=n) for n in (200, 200, 1))
    angles = random(200, 32, dtype=torch.float32)
    cos, sin = (torch.cat((part, part), -1) for part in (angles.cos(), angles.sin()))
    heads = random(200, 9, 64, dtype=BF16)
    turned = kernels.rotate(heads.clone(), cos, sin)
    normed, _ = kernels.add_rms_norm(x, residual, weight[0], 1e-5)
    gated = kernels.gated_activation(x, "silu")
    for row in (0, 7, 199):
        one = slice(row, row + 1)
        assert torch.equal(kernels.add_rms_norm(x[one], residual[one], weight[0], 1e-5)[0], normed[one])
        assert torch.equal(kernels.gated_activation(x[one], "silu"), gated[one])
        assert torch.equal(kernels.rotate(heads[one].clone(), cos[one], sin[one]), turned[one])


@pytest.mark.parametrize("width", [16, 48, 768])
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_layer_norm_is_exact_to_a_rounding(kernels: CpuOps, rows: int, width: int):
    """Against float64, alone and after the addition; a row's bits do not depend on the others."""
    x, residual = (random(rows, width, dtype=torch.bfloat16, seed=seed, scale=3) for seed in range(2))
    weight, bias = (random(width, dtype=torch.bfloat16, seed=seed) for seed in (2, 3))
    normed = kernels.layer_norm(x + 2, weight, bias, 1e-5)
    expected = layer_norm_reference((x + 2).double(), weight.double(), bias.double(), 1e-5)
    torch.testing.assert_close(normed.double(), expected, rtol=2**-8, atol=2**-8)
    normed, total = kernels.add_layer_norm(x, residual, weight, bias, 1e-5)
    assert torch.equal(total, x + residual)
    expected = layer_norm_reference(total.double(), weight.double(), bias.double(), 1e-5)
    torch.testing.assert_close(normed.double(), expected, rtol=2**-8, atol=2**-8)
    alone, _ = kernels.add_layer_norm(x[-1:], residual[-1:], weight, bias, 1e-5)
    assert torch.equal(alone, normed[-1:])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_plain_activations_are_exact_to_a_rounding(kernels: CpuOps, name: str):
    """Against float64, large values of both signs and zero included; NaN stays."""
    x = torch.cat((random(9 * 48 - 4, dtype=torch.float32, scale=4), torch.tensor([0.0, 90, -90, torch.nan])))
    x = x.to(BF16).view(9, 48)
    result = kernels.activation(x, name)
    expected = activation_reference(x.double(), name)
    torch.testing.assert_close(result.double(), expected, rtol=2**-8 + 3e-4, atol=1e-6, equal_nan=True)
