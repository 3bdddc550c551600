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
