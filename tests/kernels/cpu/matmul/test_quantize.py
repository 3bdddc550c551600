"""Inputs in 8 bits, with a scale per row or per group: against the formula, at the edges of rows and of
numbers."""

import pytest
import torch

from kernels.cpu.matmul.int8 import quantize_reference
from kernels.cpu.matmul.records import QuantizeGroupsRecord, QuantizeRecord
from tests.kernels.references.groups import quantize_inputs_reference
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels

BF16 = torch.bfloat16
ROWS, BESIDE = 5, 7


def by_rows(x: torch.Tensor, python: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers less 128, [R, W] int32, and scales [R]; nothing beside them is written."""
    from kernels.cpu.matmul.gemm_int8 import quantize_rows
    from kernels.cpu.runtime.thread_pool import TEAM

    rows, width = x.shape
    out, scales = torch.full((rows + 2, width), BESIDE, dtype=torch.uint8), torch.full((rows + 2,), 7.0)
    record = QuantizeRecord(x=x.data_ptr(), out=out[1:].data_ptr(), scales=scales[1:].data_ptr(), width=width)
    if python:
        quantize_rows.reference(record, 0, rows, 0)
    else:
        TEAM.run_one(quantize_rows, rows, record, 1)
    assert (out[[0, -1]] == BESIDE).all() and (scales[[0, -1]] == 7).all()
    return out[1:-1].int() - 128, scales[1:-1]


@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize("width", [16, 32, 48, 160])
def test_rows(width: int, python: bool):
    """Of any size: the largest value becomes 127."""
    x = random(ROWS, width, dtype=BF16) * torch.tensor([1e-20, 1e-3, 1.0, 1e3, 1e30]).to(BF16)[:, None]
    integers, scales = by_rows(x, python)
    expected, expected_scales = quantize_reference(x)
    assert torch.equal(integers, expected) and torch.equal(scales, expected_scales)
    assert (integers.abs().amax(1) == 127).all()


def test_halves_go_to_even():
    """127 is the largest: numbers are their own integers, and what lies between two goes to the even one."""
    x = torch.zeros(1, 16)
    x[0] = torch.tensor(
        [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.5, 62.5, -62.5, 63.5, -126.5, 1.0, -1, 0, -0.0]
    )
    integers, scales = by_rows(x.to(BF16))
    assert integers[0].tolist() == [127, 0, 2, 2, 0, -2, -2, 4, 62, -62, 64, -126, 1, -1, 0, 0]
    assert scales.item() == 1.0


@pytest.mark.parametrize("place", [0, 15, 16, 31])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_broken_row_has_no_scale(place: int, value: float):
    x = random(3, 32, dtype=BF16)
    expected, expected_scales = by_rows(x)
    x[1, place] = value
    integers, scales = by_rows(x)
    assert scales[1].isnan() and torch.equal(scales[[0, 2]], expected_scales[[0, 2]])
    assert torch.equal(integers[[0, 2]], expected[[0, 2]])


def by_groups(
    x: torch.Tensor, size: int, order: torch.Tensor | None = None, python: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Integers [T, groups, G] int32, scales [T, groups], and where sums begin [T, groups]."""
    from kernels.cpu.matmul.groups.inputs import quantize_groups
    from kernels.cpu.runtime.thread_pool import TEAM

    (rows, width), groups = x.shape, -(-x.shape[1] // size)
    out = torch.full((rows + 2, groups, size), BESIDE, dtype=torch.int8)
    terms = torch.full((rows + 2, groups, 2), BESIDE, dtype=torch.int32)
    record = QuantizeGroupsRecord(
        x=x.data_ptr(),
        out=out[1:].data_ptr(),
        terms=terms[1:].data_ptr(),
        order=0 if order is None else order.data_ptr(),
        width=width,
        groups=groups,
        group_size=size,
        scratch=TEAM.scratch(2 * width),
    )
    if python:
        quantize_groups.reference(record, 0, rows, 0)
    else:
        TEAM.run_one(quantize_groups, rows, record, 1)
    assert (out[[0, -1]] == BESIDE).all() and (terms[[0, -1]] == BESIDE).all()
    scales, sums = terms[1:-1].unbind(-1)
    return out[1:-1].int(), scales.contiguous().view(torch.float32), sums


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("size", [16, 32, 48, 64, 128])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 31, 33, 64, 100, 130])
def test_groups(width: int, size: int, ordered: bool):
    """Of every size, the last one cut anywhere, in any order of the inputs; compiled and in Python."""
    from kernels.cpu.matmul.groups.vectors import BASE_BITS, OFFSET

    x = random(3, width, dtype=BF16, seed=width)
    order = torch.randperm(width, generator=torch.Generator().manual_seed(1)) if ordered else None
    integers, scales, sums = by_groups(x, size, order)
    expected, expected_scales = quantize_inputs_reference(x if order is None else x[:, order], size)
    assert torch.equal(integers, expected) and torch.equal(scales, expected_scales)
    assert torch.equal(sums, BASE_BITS - OFFSET * expected.sum(-1, dtype=torch.int32))
    if size == 32:
        for found, python in zip((integers, scales, sums), by_groups(x, size, order, True), strict=True):
            assert torch.equal(found, python)


@pytest.mark.parametrize("place", [0, 31, 32, 69])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_broken_value_costs_its_group_the_scale(place: int, value: float):
    """And no other one."""
    x = random(3, 70, dtype=BF16)
    _, expected, _ = by_groups(x, 32)
    x[1, place] = value
    _, scales, _ = by_groups(x, 32)
    broken = torch.zeros(3, 3, dtype=torch.bool)
    broken[1, place // 32] = True
    assert torch.equal(scales.isnan(), broken) and torch.equal(scales[~broken], expected[~broken])


def test_groups_of_nothing():
    """Zeros, and numbers so small that their inverse would be infinite."""
    x = torch.zeros(2, 64, dtype=BF16)
    x[0, 5], x[1, 40] = 1e-38, -1e-31
    integers, scales, _ = by_groups(x, 32)
    assert not integers.any() and (scales >= 0).all() and (scales < 1e-30).all()
