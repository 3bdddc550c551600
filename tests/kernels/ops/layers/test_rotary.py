"""rotary."""

import pytest
import torch

from kernels.ops.layers.rotary import rotary, rotary_reference
from tests.kernels.tolerances import TOLERANCES, assert_close, random


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
