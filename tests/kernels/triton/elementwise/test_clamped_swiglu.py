"""gpt-oss's activation at its limits, and at the edges of a program."""

import pytest
import torch

from kernels.ops.layers.activation import clamped_swiglu as clamped_swiglu_reference
from kernels.triton.elementwise import activation as module
from kernels.triton.elementwise.activation import clamped_swiglu
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.conftest import Where

ALPHA, LIMIT = 1.702, 7.0


@pytest.mark.parametrize(("rows", "width"), [(0, 5), (1, 1), (2, 15), (2, 16), (3, 17), (1, 40)])
def test_widths(where: Where, rows: int, width: int, monkeypatch: pytest.MonkeyPatch):
    """Around the number of values of a program; half of the values are beyond the limits."""
    monkeypatch.setattr(module, "BLOCK", 16)
    gate_up = random(rows, 2 * width, dtype=where.dtype, scale=10.0)
    result = clamped_swiglu(gate_up.to(where.device), ALPHA, LIMIT)
    assert result.shape == (rows, width) and result.dtype == where.dtype
    exact = clamped_swiglu_reference(gate_up.double(), ALPHA, LIMIT)
    assert_close(result.cpu(), exact, 8 * where.absolute, 8 * where.relative)


def test_the_gate_is_limited_above_alone(device: torch.device):
    """And up on both sides; at a limit nothing changes."""
    gate = torch.tensor([8.0, 7.0, 1e30, -1e30, -200.0, 0.0, 1.0, 1.0])
    up = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 99.0, 8.0, -1e30])
    result = clamped_swiglu(torch.cat((gate, up))[None].to(device), ALPHA, LIMIT)[0].cpu()
    of_seven, of_one = (2 * 7 / (1 + torch.tensor(-ALPHA * 7).exp())), 1 / (1 + torch.tensor(-ALPHA).exp())
    assert result[0] == result[1] == result[2]
    torch.testing.assert_close(result[0], of_seven)
    assert not result[3:6].any()
    torch.testing.assert_close(result[6:], torch.stack((8 * of_one, -6 * of_one)))


def test_what_is_no_number_stays_none(where: Where):
    """In the gate and in up, in its own place alone; infinite ones are limited."""
    gate_up = torch.ones(1, 10, dtype=where.dtype)
    gate_up[0, 1] = gate_up[0, 7] = torch.nan
    gate_up[0, 3], gate_up[0, 9] = torch.inf, -torch.inf
    result = clamped_swiglu(gate_up.to(where.device), ALPHA, LIMIT)[0].cpu()
    assert result.isnan().tolist() == [False, True, True, False, False] and result[[0, 3, 4]].isfinite().all()


def test_rows_are_independent(where: Where):
    gate_up = random(4, 42, dtype=where.dtype, scale=6.0).to(where.device)
    assert_rows_are_independent(lambda x: clamped_swiglu(x, ALPHA, LIMIT), gate_up)
