"""Activations in Triton against their references in float64."""

import pytest
import torch

from kernels.ops.layers.activation import ACTIVATIONS
from kernels.triton.elementwise.activation import KINDS, activation, gated_activation
from tests.kernels.references.layers import activation_reference, gated_activation_reference
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.conftest import Where


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
        assert torch.equal(result.isnan(), nan)
        plain = activation(gate[None].to(where.device), name)[0].cpu()
        assert torch.equal(plain.isnan(), nan) and torch.equal(plain[~nan], result[~nan])
        torch.testing.assert_close(result.double()[~nan], exact[~nan], rtol=where.relative, atol=1e-6)


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_new"])
def test_rows_are_independent(where: Where, name: str):
    gate_up = random(4, 2 * 131, dtype=where.dtype).to(where.device)
    assert_rows_are_independent(lambda x: gated_activation(x, name), gate_up)


def test_the_input_stays(where: Where):
    gate_up = random(2, 32, dtype=where.dtype).to(where.device)
    before = gate_up.clone()
    gated_activation(gate_up, "silu")
    activation(gate_up, "silu")
    assert torch.equal(gate_up, before)
