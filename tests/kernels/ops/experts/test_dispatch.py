"""The order of pairs, the weights before experts and the sums behind them, in plain Python and float64."""

import math

import pytest
import torch

from kernels.ops.experts.dispatch import combine, dispatch, weigh
from tests.kernels.tolerances import TOLERANCES, assert_close, random

CHOICES = [
    torch.zeros((0, 2), dtype=torch.int64),
    torch.tensor([[3]]),
    torch.tensor([[2], [2], [2]]),
    torch.tensor([[1, 0], [0, 1], [3, 1], [1, 3], [0, 3]]),
]


@pytest.mark.parametrize("experts", CHOICES, ids=["none", "one", "the same", "several"])
def test_pairs_of_an_expert_stay_in_their_order(experts: torch.Tensor):
    found, top_k = dispatch(experts, 4), experts.shape[1]
    flat = experts.flatten().tolist()
    order = sorted(range(len(flat)), key=lambda pair: (flat[pair], pair))
    assert found.tokens.tolist() == [pair // top_k for pair in order]
    assert found.places.flatten().tolist() == [order.index(pair) for pair in range(len(flat))]
    assert found.places.shape == experts.shape
    assert found.counts.tolist() == [flat.count(expert) for expert in range(4)]


@pytest.mark.parametrize(("dtype", "absolute", "relative"), TOLERANCES)
def test_inputs_are_weighed_where_their_pairs_are(dtype: torch.dtype, absolute: float, relative: float):
    places = dispatch(CHOICES[3], 4).places
    x, weights = random(5, 7, dtype=dtype), random(5, 2, dtype=torch.float32, seed=1)
    out = weigh(x, weights, places)
    exact = torch.full((10, 7), torch.nan, dtype=torch.float64)
    for token in range(5):
        for j in range(2):
            exact[places[token, j]] = x[token].double() * weights[token, j].item()
    assert out.dtype == dtype
    assert_close(out, exact, absolute, relative)


@pytest.mark.parametrize(("dtype", "absolute", "relative"), TOLERANCES)
@pytest.mark.parametrize("others", [0, 1, 2], ids=["alone", "shared", "gated"])
def test_sums_of_what_experts_give(dtype: torch.dtype, absolute: float, relative: float, others: int):
    places = dispatch(CHOICES[3], 4).places
    y, shared = random(10, 7, dtype=dtype), random(5, 7, dtype=dtype, seed=1)
    weights, gate = random(5, 2, dtype=torch.float32, seed=2), random(5, dtype=torch.float32, seed=3)
    out = combine(y, weights, places, *(shared, gate)[:others])
    exact = torch.zeros(5, 7, dtype=torch.float64)
    for token in range(5):
        for j in range(2):
            exact[token] += y[places[token, j]].double() * weights[token, j].item()
        factor = 1 / (1 + math.exp(-gate[token].item())) if others == 2 else 1.0
        exact[token] += shared[token].double() * factor if others else 0.0
    assert out.dtype == dtype
    assert_close(out, exact, absolute, relative)


def test_a_sum_is_rounded_once():
    """In bfloat16 1 + 2 ** -9 + 2 ** -9 would stay 1 if each term were rounded."""
    y = torch.tensor([[1.0], [2**-8], [2**-8]], dtype=torch.bfloat16)
    out = combine(y, torch.tensor([[1.0, 0.5, 0.5]]), torch.tensor([[0, 1, 2]]))
    assert out.item() == 1.0  # a tie, to even
    out = combine(y, torch.tensor([[1.0, 0.5, 1.0]]), torch.tensor([[0, 1, 2]]))
    assert out.item() == 1 + 2**-7
