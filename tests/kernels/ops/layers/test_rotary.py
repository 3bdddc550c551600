"""rotary."""

import pytest
import torch

from kernels.ops.layers.rotary import rotary
from tests.kernels.references.layers import rotary_reference
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.tolerances import DTYPES, TOLERANCES, assert_close, random


def angles(tokens: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin as the kernel wants them, [T, D] float32."""
    half = torch.linspace(0, 6, tokens)[:, None] * torch.linspace(1, 0.1, head_dim // 2)
    return torch.cat((half.cos(), half.cos()), -1), torch.cat((-half.sin(), half.sin()), -1)


@pytest.mark.parametrize(("dtype", "absolute", "relative"), TOLERANCES)
@pytest.mark.parametrize(("tokens", "heads", "head_dim"), [(1, 1, 2), (5, 3, 20), (9, 8, 64)])
def test_equals_reference(
    tokens: int, heads: int, head_dim: int, dtype: torch.dtype, absolute: float, relative: float
):
    """A strided view, as the fused projection gives it."""
    x = random(tokens, heads + 2, head_dim, dtype=dtype)[:, 1:-1]
    cos, sin = angles(tokens, head_dim)
    exact = rotary_reference(x.double(), cos.double(), sin.double())
    assert_close(rotary(x, cos, sin), exact, absolute, relative)
    assert_close(rotary_reference(x, cos, sin), exact, absolute, relative)


def test_a_quarter_turn():
    """(x, y) becomes (-y, x)."""
    x = torch.tensor([[[3.0, 5.0]]])
    result = rotary(x, torch.zeros(1, 2), torch.tensor([[-1.0, 1.0]]))
    assert result.tolist() == [[[-5.0, 3.0]]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_angle_zero_changes_nothing(dtype: torch.dtype):
    x = random(3, 2, 16, dtype=dtype)
    assert torch.equal(rotary(x, torch.ones(3, 16), torch.zeros(3, 16)), x)


@pytest.mark.parametrize(("tokens", "heads"), [(0, 3), (4, 0)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_to_rotate(tokens: int, heads: int, dtype: torch.dtype):
    cos, sin = angles(max(tokens, 1), 8)
    x = torch.empty(tokens, heads, 8, dtype=dtype)
    assert rotary(x, cos[:tokens], sin[:tokens]).shape == (tokens, heads, 8)


def test_lengths_stay():
    """A rotation keeps the length of each pair."""
    x, (cos, sin) = random(9, 2, 64, dtype=torch.float64), angles(9, 64)
    before = x.view(9, 2, 2, 32).norm(dim=2)
    after = rotary(x, cos.double(), sin.double()).view(9, 2, 2, 32).norm(dim=2)
    torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_are_independent(dtype: torch.dtype):
    cos, sin = angles(7, 32)
    assert_rows_are_independent(rotary, random(7, 3, 32, dtype=dtype), cos, sin)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_input_stays(dtype: torch.dtype):
    x, (cos, sin) = random(5, 2, 8, dtype=dtype), angles(5, 8)
    before = x.clone()
    rotary(x, cos, sin)
    assert torch.equal(x, before)
