"""Weighted sums and weighed inputs of experts, and gpt-oss's activation, against the layers' operations."""

import pytest
import torch

from kernels.ops.experts.dispatch import combine as combine_reference
from kernels.ops.experts.dispatch import weigh as weigh_reference
from kernels.ops.layers.activation import clamped_swiglu as clamped_reference
from kernels.triton.elementwise.activation import clamped_swiglu
from kernels.triton.experts.combine import combine, weigh
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.conftest import Where

TOKENS, TOP_K, WIDTH = 5, 3, 1030
"""Wider than a program."""


def places() -> torch.Tensor:
    """Where each pair is."""
    order = torch.randperm(TOKENS * TOP_K, generator=torch.Generator().manual_seed(4))
    return order.view(TOKENS, TOP_K).to(torch.int32)


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_weighted_sums(where: Where, parts: int):
    """Bit for bit those of the layers, but for what all tokens have with a gate."""
    y = random(TOKENS * TOP_K, WIDTH, dtype=where.dtype)
    weights = random(TOKENS, TOP_K, dtype=torch.float32, seed=1)
    besides = [random(TOKENS, WIDTH, dtype=where.dtype, seed=2), random(TOKENS, dtype=torch.float32, seed=3)]
    moved = [each.to(where.device) for each in (y, weights, places(), *besides[:parts])]
    expected = combine_reference(y, weights, places().long(), *besides[:parts])
    result = combine(*moved).cpu()
    if parts < 2:
        assert torch.equal(result, expected)
    assert_close(result, expected.double(), where.absolute, where.relative)


def test_weighed_inputs(where: Where):
    """Bit for bit."""
    x, weights = random(TOKENS, WIDTH, dtype=where.dtype), random(TOKENS, TOP_K, dtype=torch.float32, seed=1)
    moved = [each.to(where.device) for each in (x, weights, places())]
    assert torch.equal(weigh(*moved).cpu(), weigh_reference(x, weights, places().long()))


def test_clamped_swiglu(where: Where):
    """Values beyond the limit, and some that are none."""
    gate_up = random(3, 2 * 1030, dtype=where.dtype, scale=4.0)
    gate_up[0, 0] = gate_up[1, 1031] = torch.nan
    result = clamped_swiglu(gate_up.to(where.device), 1.7, 3.0).cpu()
    expected = clamped_reference(gate_up, 1.7, 3.0)
    torch.testing.assert_close(
        result, expected, atol=where.absolute, rtol=max(where.relative, 1e-5), equal_nan=True
    )
    assert result.isnan().sum() == 2
