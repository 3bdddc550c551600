"""Products with two levels of scales: against the formula in float64, with any batch mates, and in Python."""

import pytest
import torch

from kernels.cpu.matmul.groups.weight import (
    GroupedWeight,
    GroupedWords,
    round_to_two_levels,
)
from kernels.cpu.matmul.records import PART, GroupLinearRecord, QuantizeGroupsRecord
from tests.kernels.references.groups import grouped_linear_reference, quantize_inputs_reference
from tests.kernels.tolerances import assert_close, random

pytestmark = pytest.mark.cpu_kernels

BF16 = torch.bfloat16
SHAPES = [(32, 1, 32), (64, 48, 64), (50, 49, 64), (577, 100, 64), (1024, 65, 128), (300, 400, 128)]
"""(K, N, group): K that is no multiple of a part, N that is no multiple of 48 or 16."""


def given(in_features: int, out_features: int, size: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """p, m and z of any size whose products have 8 bits, and scales of both signs; results are near 1."""
    generator = torch.Generator().manual_seed(seed)
    groups = -(-in_features // size)
    parts = out_features, groups, size // PART
    small = torch.randint(16, parts, generator=generator)
    zeros = torch.randint(16, parts, generator=generator)
    integers = torch.randint(16, (*parts, PART), generator=generator)
    most = 127 // small.clamp(min=1)
    low, high = ((zeros + sign * most).clamp(0, 15)[..., None] for sign in (-1, 1))
    integers = integers.maximum(low).minimum(high)
    scales = (torch.rand(out_features, generator=generator) - 0.5) * 0.04 * in_features**-0.5
    return integers, small, zeros, scales


def pack(
    integers: torch.Tensor,
    small: torch.Tensor,
    zeros: torch.Tensor,
    scales: torch.Tensor,
    in_features: int,
    bias: torch.Tensor | None = None,
) -> GroupedWeight:
    """integers: [N, groups, parts, PART] -> the weight that holds them."""
    rows, groups, parts, _ = integers.shape
    size = parts * PART
    words = GroupedWords.empty((rows, in_features), size, groups)
    last = (small | zeros << 4) << torch.arange(0, 8 * parts, 8)
    each = torch.zeros(rows, groups, size // 8 + 1, dtype=torch.int64)
    shifts = torch.tensor([0, 8, 16, 24, 4, 12, 20, 28])
    each[..., :-1] = (integers.reshape(rows, groups, -1, 8) << shifts).sum(-1)
    each[..., -1] = last.sum(-1)
    blocks = torch.zeros(len(words.words) * 48, groups, size // 8 + 1, dtype=torch.int64)
    blocks[:rows] = each
    words.words.copy_(blocks.view(-1, 48, *blocks.shape[1:]).permute(0, 2, 3, 1).to(torch.int32))
    packed = words.pack(bias, levels=2)
    padded = torch.zeros(len(packed.params) * 16)
    padded[:rows] = scales
    packed.params[:, 1] = padded.view(-1, 16)
    return packed


def weight_of(shape: tuple[int, int, int], bias: torch.Tensor | None = None) -> GroupedWeight:
    """Any integers."""
    return pack(*given(*shape), shape[0], bias)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 7, 8, 12, 33, 259])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_formula(shape: tuple[int, int, int], tokens: int) -> None:
    """The sums of a group are exact; scales round, in float32."""
    x = random(tokens, shape[0], dtype=BF16)
    bias = random(shape[1], dtype=BF16, seed=2)
    packed = weight_of(shape, bias)
    exact = grouped_linear_reference(x, packed, bias)
    assert float(exact.abs().max()) > 0.1
    assert_close(packed.multiply(x, wide=True), exact, 4e-6, 2e-6)
    assert_close(packed.multiply(x), exact, 4e-6, 2**-8)


@pytest.mark.parametrize("shape", SHAPES)
def test_company_changes_nothing(shape: tuple[int, int, int]) -> None:
    x = random(300, shape[0], dtype=BF16)
    packed = weight_of(shape)
    together = packed.multiply(x, wide=True)
    for first, last in [(0, 1), (7, 9), (100, 103), (255, 258), (20, 60), (299, 300), (3, 8), (40, 52)]:
        assert torch.equal(packed.multiply(x[first:last], wide=True), together[first:last])


@pytest.mark.parametrize("tokens", [1, 6, 12])
@pytest.mark.parametrize(("small", "zero", "integer", "level"), [(15, 7, 15, 120), (8, 15, 0, -120)])
def test_the_largest_sums(tokens: int, small: int, zero: int, integer: int, level: int) -> None:
    """A group of 128 with inputs, integers, scales and zero points at their ends, of both signs."""
    parts = torch.ones(50, 2, 4, dtype=torch.int64)
    integers = torch.full((50, 2, 4, PART), integer)
    packed = pack(integers, small * parts, zero * parts, torch.full((50,), 0.25), 256)
    x = torch.ones(tokens, 256, dtype=BF16)
    x[::2, :128] = -1
    expected = torch.tensor([0.0 if token % 2 == 0 else 0.25 * level * 256 for token in range(tokens)])
    assert_close(packed.multiply(x, wide=True), expected.double()[:, None].expand(tokens, 50), 1e-3, 1e-6)


def test_what_is_packed_comes_back() -> None:
    """Each integer times its scales, bit for bit."""
    integers, small, zeros, scales = given(160, 100, 32)
    levels = small[..., None] * (integers - zeros[..., None])
    expected = levels.float().flatten(1) * scales[:, None]
    assert torch.equal(pack(integers, small, zeros, scales, 160).values(), expected)


def test_inputs_have_the_sums_of_their_parts() -> None:
    """Beside a scale per group, and where its sums begin; of zeros behind the row's end, none."""
    from kernels.cpu.matmul.groups.inputs import quantize_groups
    from kernels.cpu.matmul.groups.vectors import BASE_BITS, MIDDLE
    from kernels.cpu.runtime.thread_pool import TEAM

    x = random(5, 200, dtype=BF16)
    x[1], x[2, 40], x[3, 70] = 0.0, 3e38, 1e-38
    out, terms = torch.zeros(5, 256, dtype=torch.int8), torch.zeros(5, 2, 6, dtype=torch.int32)
    record = QuantizeGroupsRecord(
        x=x.data_ptr(),
        out=out.data_ptr(),
        terms=terms.data_ptr(),
        order=0,
        width=200,
        groups=2,
        group_size=128,
        levels=2,
        scratch=0,
    )
    TEAM.run_one(quantize_groups, 5, record, 1)
    integers, scales = quantize_inputs_reference(x, 128)
    sums = integers.view(5, 2, 4, PART).sum(-1, dtype=torch.int32)
    assert torch.equal(out.view(5, 2, 128).int(), integers)
    assert torch.equal(terms[:, :, 0].contiguous().view(torch.float32), scales)
    assert torch.equal(terms[:, :, 1], BASE_BITS - MIDDLE * sums.sum(-1, dtype=torch.int32))
    assert torch.equal(terms[:, :, 2:], -sums) and sums.any()
    in_python, terms_in_python = torch.zeros_like(out), torch.zeros_like(terms)
    record.out, record.terms = in_python.data_ptr(), terms_in_python.data_ptr()
    quantize_groups.reference(record, 0, 5, 0)
    assert torch.equal(in_python, out) and torch.equal(terms_in_python, terms)


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_python_gives_the_same(rows: int) -> None:
    from kernels.cpu.matmul.groups.two_level_product import two_level_linear
    from kernels.cpu.matmul.groups.vectors import BASE_BITS, MIDDLE
    from kernels.cpu.runtime.thread_pool import TEAM

    packed = weight_of((128, 70, 64), random(70, dtype=BF16))
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-127, 128, (rows, 128), generator=generator).to(torch.int8)
    parts = x.view(rows, 2, 2, PART).sum(-1, dtype=torch.int32)
    begin = BASE_BITS - MIDDLE * parts.sum(-1, keepdim=True, dtype=torch.int32)
    scales = random(rows, 2, 1, dtype=torch.float32).view(torch.int32)
    terms = torch.cat([scales, begin, -parts], -1).contiguous()
    both = torch.zeros(2, rows, 70)
    records: list[GroupLinearRecord] = [packed.record(x, out, terms) for out in both]
    TEAM.run_one(two_level_linear, rows, records[0], 0)
    records[1].rows = rows
    two_level_linear.reference(records[1], 0, 5, 0)
    assert torch.equal(both[0], both[1]) and both.all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("tokens", [3, 9])
def test_a_broken_row_stays_broken(value: float, tokens: int) -> None:
    """As in floating point, so that its request is told; its neighbours compute."""
    x = random(tokens, 96, dtype=BF16)
    packed = weight_of((96, 20, 32))
    expected = packed.multiply(x, wide=True)
    x[1, 45] = value
    result = packed.multiply(x, wide=True)
    assert bool(result[1].isnan().all())
    others = [0, *range(2, tokens)]
    assert torch.equal(result[others], expected[others])


@pytest.mark.parametrize(
    ("in_features", "size"), [(32, 32), (64, 64), (96, 32), (576, 64), (896, 128), (4864, 128), (4900, 128)]
)
def test_groups_take_the_least_memory(in_features: int, size: int) -> None:
    """Of the sizes 32, 64 and 128, with what pads the last group."""
    packed = round_to_two_levels(random(16, in_features, dtype=BF16), None)
    assert packed.group_size == size and packed.levels == 2
    assert packed.words.nbytes == 48 * -(-in_features // size) * (size // 2 + 4)
