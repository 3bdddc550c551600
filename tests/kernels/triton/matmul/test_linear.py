"""Products against float64; and their bits, which depend on the row and the weight alone."""

from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import pytest
import torch

from kernels import triton_ops
from kernels.triton.matmul import ranges
from kernels.triton.matmul.linear import linear
from kernels.triton.matmul.range_launch import sum_ranges
from kernels.triton.matmul.ranges import LinearSizes, SumOrder, range_length
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.conftest import Where
from tests.kernels.triton.references import add_as_tree, sum_ranges_reference

DEPTH, FEATURES = 200, 70
"""Two ranges, of which the second is shorter and ends within an iteration."""
pytestmark = pytest.mark.usefixtures("short_ranges")
SCHEDULES = [
    LinearSizes(64, 16, 64, 4, 1, True),
    LinearSizes(64, 16, 64, 4, 1, False),
    LinearSizes(128, 64, 64, 8, 1, False),
    LinearSizes(128, 32, 16, 4, 1, True),
    LinearSizes(64, 128, 32, 4, 1, False),
]


@pytest.fixture
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 values and more."""
    monkeypatch.setattr(ranges, "LEAST_RANGE", 64)


def operands(tokens: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, a view of a wider tensor whose rest is NaN; weight; bias."""
    fused = torch.full((tokens, DEPTH + 8), torch.nan, dtype=dtype)
    fused[:, 8:] = random(tokens, DEPTH, dtype=dtype)
    weight = random(FEATURES, DEPTH, dtype=dtype, seed=1)
    return fused[:, 8:], weight, random(FEATURES, dtype=dtype, seed=2)


@pytest.mark.parametrize("wide", [False, True])
def test_equals_float64(where: Where, wide: bool):
    x, weight, bias = operands(3, where.dtype)
    moved = (tensor.to(where.device) for tensor in (x, weight, bias))
    result = linear(*moved, wide).cpu()
    assert result.dtype == (torch.float32 if wide else where.dtype)
    exact = x.double() @ weight.double().T + bias.double()
    scale = DEPTH**0.5  # of the sums
    absolute = scale * (2e-5 if wide else max(where.absolute, 2e-5))
    assert_close(result, exact, absolute, 2e-5 if wide else where.relative)


def test_two_ranges():
    assert range_length(FEATURES, DEPTH) == 128


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def crowd(request: pytest.FixtureRequest, short_ranges: None) -> Iterator[tuple[torch.Tensor, ...]]:
    """x [300, K], its weight and bias, and the results of single rows, before they are rounded."""
    x, weight, bias = operands(300, request.param)
    yield x, weight, bias, torch.cat([linear(x[i : i + 1], weight, bias, True) for i in (0, 17, 299)])


@pytest.mark.parametrize("tokens", [2, 17, 300])
def test_a_row_alone_and_in_a_crowd(crowd: tuple[torch.Tensor, ...], tokens: int):
    """Behind others, in programs of any size."""
    x, weight, bias, alone = crowd
    for place, row in enumerate((0, 17, 299)[: 1 if tokens == 300 else 3]):
        batch = torch.cat((x[: tokens - 1], x[row : row + 1]))
        assert torch.equal(linear(batch, weight, bias, True)[-1], alone[place])


@pytest.mark.parametrize("sizes", SCHEDULES, ids=str)
def test_every_schedule_has_the_same_bits(crowd: tuple[torch.Tensor, ...], sizes: LinearSizes):
    """Programs that sum a range each, and programs that sum all of them; tiles of any size."""
    x, weight, bias, alone = crowd
    assert torch.equal(linear(x[17:18], weight, bias, True, sizes)[0], alone[1])
    if sizes.tokens > 16:
        assert torch.equal(linear(x[:18], weight, bias, True, sizes)[17], alone[1])


def test_a_split_by_the_number_of_tokens_is_found(crowd: tuple[torch.Tensor, ...]):
    """A planted bug: ranges that are longer where there are more tokens."""
    x, weight, bias, alone = crowd
    with mock.patch.object(ranges, "range_length", lambda features, depth: 256):
        many = linear(x[:18], weight, bias, True, replace(SCHEDULES[1], tokens=32))
    assert not torch.equal(many[17], alone[1])


@pytest.mark.parametrize("leaves", [2, 4, 8])
def test_a_product_is_a_tree_of_leaves(leaves: int, device: torch.device):
    """In every schedule: each leaf is the product of its inputs, and ends within an iteration."""
    x, weight, bias = (random(*shape, dtype=torch.bfloat16) for shape in ((18, 320), (70, 320), (70,)))
    x, weight, bias = (each.to(device) for each in (x, weight, bias))
    parts = zip(x.chunk(leaves, 1), weight.chunk(leaves, 1), strict=True)
    sums = [linear(of_x, of_w.contiguous(), None, True, order=SumOrder(70, 1)) for of_x, of_w in parts]
    expected = add_as_tree(torch.stack(sums)) + bias.float()
    for sizes in (None, *SCHEDULES):
        assert torch.equal(linear(x, weight, bias, True, sizes, SumOrder(70, leaves)), expected), sizes
    rounded = linear(x, weight, bias, order=SumOrder(70, leaves))
    assert torch.equal(rounded, expected.bfloat16())


@pytest.mark.parametrize("size", [2, 4, 8])
def test_ranks_have_the_bits_of_one(size: int, device: torch.device):
    """Of inputs that they divide: each adds its leaves, and then those of all; and of rows that they divide,
    in ranges of the whole weight."""
    x, weight, bias = (random(*shape, dtype=torch.bfloat16) for shape in ((3, 512), (64, 512), (64,)))
    x, weight, bias = (each.to(device) for each in (x, weight, bias))
    whole = linear(x, weight, bias, order=SumOrder(64, 8))
    parts = zip(x.chunk(size, 1), weight.chunk(size, 1), strict=True)
    sums = [
        linear(of_x, of_w.contiguous(), None, True, order=SumOrder(64, 8 // size)) for of_x, of_w in parts
    ]
    out = torch.empty_like(whole)
    sum_ranges(torch.stack(sums), bias, out, as_tree=True)
    assert torch.equal(out, whole)
    columns = [linear(x, part, None, order=SumOrder(64)) for part in weight.chunk(size)]
    assert torch.equal(torch.cat(columns, 1), linear(x, weight, order=SumOrder(64)))


def test_sums_of_ranges(where: Where):
    parts, bias = random(5, 3, 70, dtype=torch.float32), random(70, dtype=where.dtype, seed=1)
    for added in (None, bias):
        out = torch.empty(3, 70, dtype=where.dtype, device=where.device)
        sum_ranges(parts.to(where.device), None if added is None else added.to(where.device), out)
        assert_close(out.cpu(), sum_ranges_reference(parts, added), where.absolute, where.relative)


def test_layers_multiply_in_one_order(monkeypatch: pytest.MonkeyPatch):
    """By default; with --fast-matmul the library multiplies, but for logits."""
    called: list[bool] = []
    monkeypatch.setattr(triton_ops, "linear", lambda x, weight, bias, wide, order: called.append(wide))
    x = torch.ones(2, 8)
    by_default, by_library = triton_ops.TritonOps(), triton_ops.TritonOps(by_library=True)
    by_default.linear(x, x)
    by_default.linear(x, x, wide=True)
    by_library.linear(x, x, wide=True)
    assert by_library.linear(x, x).tolist() == [[8.0, 8.0]] * 2
    assert called == [False, True, True]
