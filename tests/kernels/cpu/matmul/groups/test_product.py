"""Products with weights in groups: against the formula in float64, with any batch mates, and in Python."""

import numpy as np
import pytest
import torch

from kernels.cpu.matmul.groups.weight import (
    GroupedWeight,
    GroupedWords,
)
from kernels.cpu.matmul.records import GroupLinearRecord, QuantizeGroupsRecord
from tests.kernels.cpu.matmul.groups.one_level import one_level
from tests.kernels.references.groups import grouped_linear_reference, quantize_inputs_reference
from tests.kernels.tolerances import assert_close, random

pytestmark = pytest.mark.cpu_kernels

BF16 = torch.bfloat16
SHAPES = [(1, 1, 32), (64, 48, 64), (50, 49, 32), (577, 100, 64), (1024, 65, 128), (96, 700, 16)]
"""(K, N, group): K that is no multiple of the group, N that is no multiple of 48 or 16."""


def given(in_features: int, out_features: int, size: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Integers, scales and zero points as a checkpoint might have them; results are near 1."""
    generator = torch.Generator().manual_seed(seed)
    shape = out_features, -(-in_features // size)
    integers = torch.randint(16, (*shape, size), generator=generator, dtype=torch.uint8)
    zeros = torch.randint(17, shape, generator=generator)
    scales = (torch.rand(shape, generator=generator) * 0.2 * in_features**-0.5).half().float()
    return integers, scales, zeros


def pack(
    integers: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    bias: torch.Tensor | None,
    order: torch.Tensor | None = None,
) -> GroupedWeight:
    """In two parts, the later rows first."""
    rows, groups, size = integers.shape
    in_features = groups * size if order is None else len(order)
    words = GroupedWords.empty((rows, in_features), size, groups, order)
    for some in torch.arange(rows).flip(0).chunk(2):
        words.put(some, integers[some], scales[some], zeros[some])
    return words.pack(bias)


def weight_of(in_features: int, out_features: int, size: int, bias: torch.Tensor | None) -> GroupedWeight:
    """Any integers in an order of the inputs, which also says how many there are."""
    order = torch.randperm(in_features, generator=torch.Generator().manual_seed(in_features))
    return pack(*given(in_features, out_features, size), bias, order)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 8, 9, 11, 33, 259])
@pytest.mark.parametrize(("in_features", "out_features", "size"), SHAPES)
def test_the_formula(in_features: int, out_features: int, size: int, tokens: int) -> None:
    """The sums of a group are exact; scales round, in float32."""
    x = random(tokens, in_features, dtype=BF16)
    bias = random(out_features, dtype=BF16, seed=2)
    packed = weight_of(in_features, out_features, size, bias)
    exact = grouped_linear_reference(x, packed, bias)
    assert_close(packed.multiply(x, wide=True), exact, 4e-6, 2e-6)
    assert_close(packed.multiply(x), exact, 4e-6, 2**-8)


@pytest.mark.parametrize(("in_features", "out_features", "size"), SHAPES)
def test_company_changes_nothing(in_features: int, out_features: int, size: int) -> None:
    x = random(300, in_features, dtype=BF16)
    packed = weight_of(in_features, out_features, size, None)
    together = packed.multiply(x, wide=True)
    for first, last in [(0, 1), (7, 9), (100, 103), (255, 258), (20, 60), (299, 300), (3, 8)]:
        assert torch.equal(packed.multiply(x[first:last], wide=True), together[first:last])


@pytest.mark.parametrize("tokens", [1, 6, 12])
def test_the_largest_sums(tokens: int) -> None:
    """A group of 128 with inputs, integers and zero points at their ends, of both signs."""
    scales = torch.full((50, 2), -0.25)
    packed = pack(torch.zeros(50, 2, 128, dtype=torch.uint8), scales, torch.full((50, 2), 64), None)
    x = torch.ones(tokens, 256, dtype=BF16)
    x[::2, :128] = -1
    largest = 0.25 * 64 * 128
    expected = torch.tensor([0.0 if token % 2 == 0 else 2 * largest for token in range(tokens)]).double()
    assert_close(packed.multiply(x, wide=True), expected[:, None].expand(tokens, 50), 1e-3, 1e-6)


def test_what_is_packed_comes_back() -> None:
    """Integers, scales of 16 bits and zero points, bit for bit, in the inputs' own order."""
    integers, scales, zeros = given(160, 100, 32)
    order = torch.randperm(160, generator=torch.Generator().manual_seed(1))
    values = ((integers - zeros[:, :, None]) * scales[:, :, None]).flatten(1)
    assert torch.equal(pack(integers, scales, zeros, None).values(), values)
    expected = torch.empty_like(values)
    expected[:, order] = values
    assert torch.equal(pack(integers, scales, zeros, None, order).values(), expected)


def test_inputs_have_a_scale_per_group() -> None:
    """A large value changes its own group alone."""
    from kernels.cpu.matmul.groups.inputs import quantize_groups
    from kernels.cpu.matmul.groups.vectors import BASE_BITS, OFFSET
    from kernels.cpu.runtime.thread_pool import TEAM

    x = random(5, 100, dtype=BF16)
    x[1], x[2, 40], x[3, 70] = 0.0, 3e38, 1e-38
    out, terms = torch.zeros(5, 128, dtype=torch.int8), torch.zeros(5, 4, 2, dtype=torch.int32)
    record = QuantizeGroupsRecord(
        x=x.data_ptr(),
        out=out.data_ptr(),
        terms=terms.data_ptr(),
        order=0,
        width=100,
        groups=4,
        group_size=32,
        levels=1,
        scratch=0,
    )
    TEAM.run_one(quantize_groups, 5, record, 1)
    integers, scales = quantize_inputs_reference(x, 32)
    assert torch.equal(out.view(5, 4, 32).int(), integers)
    assert torch.equal(terms[:, :, 0].contiguous().view(torch.float32), scales)
    assert torch.equal(terms[:, :, 1], BASE_BITS - OFFSET * integers.sum(-1, dtype=torch.int32))
    in_python, terms_in_python = torch.zeros_like(out), torch.zeros_like(terms)
    record.out, record.terms = in_python.data_ptr(), terms_in_python.data_ptr()
    quantize_groups.reference(record, 0, 5, 0)
    assert torch.equal(in_python, out) and torch.equal(terms_in_python, terms)


@pytest.mark.parametrize("rows", [1, 3, 11])
def test_python_gives_the_same(rows: int) -> None:
    from kernels.cpu.matmul.groups.product import group_linear
    from kernels.cpu.matmul.groups.vectors import BASE_BITS, OFFSET
    from kernels.cpu.runtime.thread_pool import TEAM

    packed = weight_of(64, 70, 32, random(70, dtype=BF16))
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-127, 128, (rows, 64), generator=generator).to(torch.int8)
    sums = BASE_BITS - OFFSET * x.view(rows, 2, 32).sum(-1, dtype=torch.int32)
    scales = random(rows, 2, dtype=torch.float32).view(torch.int32)
    terms = torch.stack([scales, sums], -1).contiguous()
    both = torch.zeros(2, rows, 70)
    records: list[GroupLinearRecord] = [packed.record(x, out, terms) for out in both]
    TEAM.run_one(group_linear, rows, records[0], 0)
    records[1].rows = rows
    group_linear.reference(records[1], 0, 5, 0)
    assert torch.equal(both[0], both[1]) and both.all()


def test_what_activations_of_8_bits_lose() -> None:
    """Beside exact ones, with one value in 100 that is thirty times as large: 1 % with a scale per group."""
    x = random(64, 1024, dtype=BF16)
    x[:, ::100] *= 30
    packed = one_level(random(256, 1024, dtype=BF16, seed=1), None, 64)
    exact = x.double() @ packed.values().double().T
    lost = packed.multiply(x, wide=True).double() - exact
    assert 0.001 < lost.square().mean().sqrt() / exact.square().mean().sqrt() < 0.02


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_broken_row_stays_broken(value: float) -> None:
    """As in floating point, so that its request is told; its neighbours compute."""
    x = random(3, 96, dtype=BF16)
    packed = weight_of(96, 20, 32, None)
    expected = packed.multiply(x, wide=True)
    x[1, 45] = value
    result = packed.multiply(x, wide=True)
    assert bool(result[1].isnan().all())
    assert np.array_equal(result[[0, 2]].numpy(), expected[[0, 2]].numpy())
