"""What ranks make of one another's parts, against torch."""

from typing import Any

import pytest
import torch

from kernels.cpu.elementwise.records import AddPartsRecord, FindOwnersRecord, JoinPartsRecord
from tests.kernels.cpu.python_team import PythonTeam
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels
F32 = torch.float32
ROWS = 3


def tree(parts: list[torch.Tensor]) -> torch.Tensor:
    """The sum of neighbours, then of neighbouring sums."""
    while len(parts) > 1:
        parts = [one + other for one, other in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


@pytest.fixture(params=["compiled", "python"])
def team(request: pytest.FixtureRequest) -> Any:
    """What runs operations."""
    from kernels.cpu.runtime.thread_pool import TEAM

    return TEAM if request.param == "compiled" else PythonTeam()


@pytest.mark.parametrize("dtype", [torch.bfloat16, F32])
@pytest.mark.parametrize("width", [1, 16, 37])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_sums_are_trees(team: Any, count: int, width: int, dtype: torch.dtype):
    """Of which the last level has the bias, and is rounded once; parts may have more rows."""
    from kernels.cpu.elementwise.rank_parts import add_parts

    parts = random(count, ROWS + 1, width, dtype=F32, scale=3)
    parts[0] *= 1e6
    for bias in (None, random(width, dtype=F32, seed=1)):
        out = torch.zeros(ROWS, width, dtype=dtype)
        record = AddPartsRecord(
            parts=parts.data_ptr(),
            stride=4 * parts.stride(0),
            num_parts=count,
            bias=0 if bias is None else bias.data_ptr(),
            out=out.data_ptr(),
            width=width,
        )
        team.run_one(add_parts.of(dtype), ROWS, record, 1)
        total = tree([part[:ROWS] for part in parts])
        assert torch.equal(out, (total if bias is None else total + bias).to(dtype))


@pytest.mark.parametrize(("width", "last"), [(16, 16), (16, 3), (40, 1), (5, 5)])
def test_columns_of_all_ranks(team: Any, width: int, last: int):
    """Rows of the last part may be shorter: they follow each other without gaps."""
    from kernels.cpu.elementwise.rank_parts import join_parts

    widths = width, width, width, last
    expected = [random(ROWS, each, dtype=F32, seed=number) for number, each in enumerate(widths)]
    parts = torch.full((4, ROWS * width), torch.nan)
    for part, rows in zip(parts, expected, strict=True):
        part[: rows.numel()] = rows.flatten()
    out = torch.zeros(ROWS, sum(widths))
    record = JoinPartsRecord(
        parts=parts.data_ptr(),
        stride=4 * parts.stride(0),
        num_parts=4,
        part_bytes=4 * width,
        last_bytes=4 * last,
        out=out.data_ptr(),
    )
    team.run_one(join_parts, ROWS, record, 1)
    assert torch.equal(out, torch.cat(expected, 1))


def test_who_has_what(team: Any):
    from kernels.cpu.elementwise.rank_parts import find_owners

    ids, starts, pitch = torch.tensor([0, 3, 4, 9, 10, 11]), torch.tensor([0, 4, 10, 11, 12]), 8
    for rank in range(4):
        local, sources = torch.zeros(6, dtype=torch.int64), torch.zeros(6, dtype=torch.int64)
        record = FindOwnersRecord(
            ids=ids.data_ptr(),
            starts=starts.data_ptr(),
            num_ranks=4,
            rank=rank,
            local=local.data_ptr(),
            other=99,
            sources=sources.data_ptr(),
            pitch=pitch,
        )
        team.run_one(find_owners, 6, record, 1)
        owners = [0, 0, 1, 1, 2, 3]
        held = [
            each - int(starts[rank]) if owner == rank else 99
            for each, owner in zip(ids.tolist(), owners, strict=True)
        ]
        assert local.tolist() == held
        assert sources.tolist() == [pitch * owner + i for i, owner in enumerate(owners)]
