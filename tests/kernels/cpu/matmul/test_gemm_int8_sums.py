"""What ranks make of one another's largest values, and of their sums of integers, against torch."""

from math import inf, nan
from typing import Any

import pytest
import torch

from kernels.cpu.matmul.records import LargestOfPartsRecord, LargestOfRowsRecord, ScaledSumsRecord
from tests.kernels.cpu.python_team import PythonTeam
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels
F32, BF16 = torch.float32, torch.bfloat16
ROWS = 5


@pytest.fixture(params=["compiled", "python"])
def team(request: pytest.FixtureRequest) -> Any:
    """What runs operations."""
    from kernels.cpu.runtime.thread_pool import TEAM

    return TEAM if request.param == "compiled" else PythonTeam()


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether values are equal, a NaN to any."""
    return torch.equal(one.nan_to_num(nan=-1), other.nan_to_num(nan=-1))


@pytest.mark.parametrize("width", [16, 48])
def test_the_largest_values_of_rows(team: Any, width: int):
    """A row that has no number, or an infinite value, has none."""
    from kernels.cpu.matmul.gemm_int8_sums import largest_of_rows

    x = random(ROWS, width, dtype=BF16, scale=4)
    x[0] = 0
    x[1, 3], x[2, width - 1], x[3, 0] = -100, nan, -inf
    out = torch.full((ROWS,), -1.0)
    record = LargestOfRowsRecord(x=x.data_ptr(), out=out.data_ptr(), width=width)
    team.run_one(largest_of_rows, ROWS, record, 1)
    expected = x.abs().amax(1).float()
    expected[3] = nan
    assert equal(out, expected)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_the_largest_values_of_all_ranks(team: Any, count: int):
    from kernels.cpu.matmul.gemm_int8_sums import largest_of_parts

    parts = random(count, ROWS + 2, dtype=F32).abs()
    parts[0, 0] = parts[count - 1, 1] = nan
    parts[:, 2] = 0
    out = torch.full((ROWS,), -1.0)
    record = LargestOfPartsRecord(
        parts=parts.data_ptr(), stride=4 * parts.stride(0), num_parts=count, out=out.data_ptr()
    )
    team.run_one(largest_of_parts, ROWS, record, 1)
    assert equal(out, parts[:, :ROWS].amax(0))


@pytest.mark.parametrize("width", [1, 16, 37])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_sums_of_all_ranks(team: Any, count: int, width: int):
    """Which float32 would not hold: they are exact before they are scaled."""
    from kernels.cpu.matmul.gemm_int8_sums import scaled_sums

    shape, generator = (count, ROWS + 1, width), torch.manual_seed(width)
    parts = torch.randint(-(2**27), 2**27, shape, dtype=torch.int32, generator=generator)
    scales, weight_scales = random(ROWS, dtype=F32), random(width, dtype=F32, seed=1)
    for bias in (None, random(width, dtype=F32, seed=2)):
        out = torch.zeros(ROWS, width, dtype=BF16)
        record = ScaledSumsRecord(
            parts=parts.data_ptr(),
            stride=4 * parts.stride(0),
            num_parts=count,
            scales=scales.data_ptr(),
            weight_scales=weight_scales.data_ptr(),
            bias=0 if bias is None else bias.data_ptr(),
            out=out.data_ptr(),
            width=width,
        )
        team.run_one(scaled_sums, ROWS, record, 1)
        total = parts[:, :ROWS].sum(0, dtype=torch.int32).float() * weight_scales * scales[:, None]
        assert torch.equal(out, (total if bias is None else total + bias).to(BF16))
