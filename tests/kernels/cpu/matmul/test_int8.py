"""Products of 8-bit integers against their formula in float64, and what they lose."""

import pytest
import torch

from kernels.cpu.matmul.int8 import QuantizedWeight, quantize_reference, quantize_weight
from tests.kernels.references.matmul import quantized_linear_reference
from tests.kernels.tolerances import assert_close, random

pytestmark = pytest.mark.cpu_kernels

BF16 = torch.bfloat16
SHAPES = [(1, 1), (16, 48), (50, 49), (577, 100), (1536, 65), (33, 700)]
"""(K, N): K that is no multiple of 16, N that is no multiple of 48 or 16."""


def inputs(tokens: int, in_features: int, out_features: int) -> tuple[torch.Tensor, ...]:
    """x, weight, bias; results near 1."""
    x = random(tokens, in_features, dtype=BF16)
    weight = random(out_features, in_features, dtype=BF16, seed=1, scale=in_features**-0.5)
    return x, weight, random(out_features, dtype=BF16, seed=2)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 7, 8, 9, 15, 33, 255, 259])
@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_the_formula(in_features: int, out_features: int, tokens: int):
    """Sums of integers are exact: only the two scales and the bias round, in float32."""
    x, weight, bias = inputs(tokens, in_features, out_features)
    packed = quantize_weight(weight, bias)
    exact = quantized_linear_reference(x, weight, bias)
    assert_close(packed.multiply(x, wide=True), exact, 2e-6, 1e-6)
    assert_close(packed.multiply(x), exact, 2e-6, 2**-8)
    without = quantize_weight(weight, None).multiply(x, wide=True)
    assert_close(without, quantized_linear_reference(x, weight, None), 2e-6, 1e-6)


@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_company_changes_nothing(in_features: int, out_features: int):
    x, weight, bias = inputs(300, in_features, out_features)
    packed = quantize_weight(weight, bias)
    together = packed.multiply(x, wide=True)
    for first, last in [(0, 1), (7, 9), (100, 103), (255, 258), (20, 60), (299, 300)]:
        assert torch.equal(packed.multiply(x[first:last], wide=True), together[first:last])


def test_what_is_lost():
    """Of normal values: 1 % of the result's size, from both roundings together."""
    x, weight, _ = inputs(64, 1024, 512)
    exact = x.double() @ weight.double().T
    lost = quantize_weight(weight, None).multiply(x, wide=True).double() - exact
    assert 0.002 < lost.square().mean().sqrt() / exact.square().mean().sqrt() < 0.015


def test_rows_of_weights():
    """As an embedding looks them up: the integers times their scale, rounded once."""
    _, weight, _ = inputs(1, 77, 130)
    packed = quantize_weight(weight, None)
    integers, scales = quantize_reference(weight)
    expected = (integers.float() * scales[:, None]).to(BF16)
    indexes = torch.tensor([0, 129, 47, 48, 15, 16, 0])
    assert torch.equal(packed.rows(indexes), expected[indexes])


def test_extremes():
    """Rows of zeros, of tiny values, of one large value among small ones."""
    x = torch.zeros(5, 32, dtype=BF16)
    x[1, 3] = 1e-38
    x[2] = 1e-20
    x[3, 0], x[3, 1:] = 3e38, 1.0
    x[4] = -1.0
    weight = torch.eye(32, dtype=BF16)
    result = quantize_weight(weight, None).multiply(x, wide=True)
    assert torch.equal(result[:2], torch.zeros(2, 32))
    torch.testing.assert_close(result[2], torch.full((32,), 1e-20))
    assert result[3, 0] == x[3, 0].float() and bool((result[3, 1:] == 0).all())
    torch.testing.assert_close(result[4], torch.full((32,), -1.0))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_broken_row_stays_broken(value: float):
    """As in floating point, so that its request is told; its neighbours compute."""
    x, weight, bias = inputs(3, 48, 20)
    packed: QuantizedWeight = quantize_weight(weight, bias)
    expected = packed.multiply(x, wide=True)
    x[1, 5] = value
    result = packed.multiply(x, wide=True)
    assert bool(result[1].isnan().all())
    assert torch.equal(result[[0, 2]], expected[[0, 2]])


def ranks_of(x: torch.Tensor, weight: torch.Tensor, size: int) -> list[torch.Tensor]:
    """What each of so many ranks makes of its inputs and those of the others."""
    largest = weight.abs().amax(1).float()
    of_rows = x.abs().amax(1).float()
    xs, weights = (
        x.chunk(size, 1),
        [quantize_weight(part, None, largest=largest) for part in weight.chunk(size, 1)],
    )
    sums: list[torch.Tensor] = []
    for part, packed in zip(xs, weights, strict=True):
        packed.add_over_ranks(part, lambda _: of_rows, lambda own: sums.append(own.clone()) or own)
    total = torch.stack(sums).sum(0, dtype=torch.int32)
    assert all(each.dtype == torch.int32 for each in sums)
    return [
        packed.add_over_ranks(part, lambda _: of_rows, lambda _: total)
        for part, packed in zip(xs, weights, strict=True)
    ]


@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 9, 33])
@pytest.mark.parametrize(("in_features", "out_features"), [(576, 50), (40, 97), (4096, 48)])
def test_ranks_have_the_bits_of_one(in_features: int, out_features: int, tokens: int):
    """Also where inputs of a rank are no multiple of 16, and where a rank's own values are small."""
    x, weight, _ = inputs(tokens, in_features, out_features)
    x[0, : in_features // 2] *= 1e-6
    weight[1, in_features // 4 :] *= 1e-4
    expected = quantize_weight(weight, None).multiply(x, wide=True)
    for size in (2, 4):
        assert all(torch.equal(each, expected) for each in ranks_of(x, weight, size))


def test_sums_of_ranks_may_be_beyond_float32():
    """Sums of 127 * 127 for 4,096 inputs are above 2^24: as float32 those of ranks would be rounded."""
    x, weight = torch.ones(3, 4096, dtype=BF16), torch.ones(16, 4096, dtype=BF16)
    weight[:, 1] = 3 / 127
    expected = quantize_weight(weight, None).multiply(x, wide=True)
    for each in ranks_of(x, weight, 2):
        assert torch.equal(each, expected)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_that_is_broken_on_one_rank_is_on_all(value: float):
    x, weight, _ = inputs(3, 64, 20)
    x[1, 40] = value
    expected = quantize_weight(weight, None).multiply(x, wide=True)
    for each in ranks_of(x, weight, 2):
        assert each[1].isnan().all() and torch.equal(each[::2], expected[::2])
