"""Mixtures of experts at their edges: every number of experts around a vector, scores that are equal or
extreme, one token and none; nothing beside a result is written."""

import pytest
import torch

from kernels.cpu.experts.records import CombineRecord, WeighRecord
from kernels.cpu_ops import CpuOps
from kernels.ops.experts.dispatch import combine, dispatch, route
from kernels.ops.experts.routing import Routing, Score
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels

BF16, F32 = torch.bfloat16, torch.float32
COUNTS = [1, 2, 15, 16, 17, 31, 32, 33, 64, 65]
BESIDE = 7.0


@pytest.mark.parametrize("score", Score)
@pytest.mark.parametrize("count", COUNTS)
def test_every_number_of_experts(count: int, score: Score):
    """One of them, some, and all: the same ones as torch chooses, and the weights to some roundings."""
    logits = random(9, count, dtype=F32, scale=3, seed=count)
    for top_k in {1, min(count, 3), min(count, 17), count}:
        routing = Routing(
            num_experts=count, top_k=top_k, score=score, normalized=True, tolerance=0.5, scale=2.0
        )
        expected, chosen = route(logits, None, routing)
        weights, experts = CpuOps(BF16).route(logits, None, routing)
        assert torch.equal(experts, chosen)
        torch.testing.assert_close(weights, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("score", Score)
def test_equal_scores_fall_to_the_first_experts(score: Score):
    routing = Routing(num_experts=20, top_k=6, score=score, tolerance=0.5)
    _, experts = CpuOps(BF16).route(torch.full((2, 20), 0.25), None, routing)
    assert experts.tolist() == [list(range(6))] * 2
    logits = torch.zeros(1, 20)
    logits[0, [3, 15, 16, 19]] = 2.0
    _, experts = CpuOps(BF16).route(logits, None, routing)
    assert experts.tolist() == [[3, 15, 16, 19, 0, 1]]


@pytest.mark.parametrize(
    "score", [Score.SOFTMAX, Score.SIGMOID, Score.SOFTMAX_OF_CHOSEN, Score.SIGMOID_OF_CHOSEN]
)
def test_logits_of_any_size(score: Score):
    """Weights are finite, at most 1, and the best one comes first."""
    logits = torch.tensor([[1e30, -1e30, 0.0, 5.0], [-1e30, -2e30, -3e30, -4e30], [100.0, 90.0, -100.0, 0.0]])
    routing = Routing(num_experts=4, top_k=2, score=score)
    weights, experts = CpuOps(BF16).route(logits, None, routing)
    expected, chosen = route(logits, None, routing)
    assert weights.isfinite().all() and (weights >= 0).all() and (weights <= 1).all()
    best = logits.argmax(1)
    if score is Score.SIGMOID:  # in the second row all scores are 0
        best[1] = 0
    assert experts[:, 0].tolist() == best.tolist()
    assert torch.equal(experts, chosen)
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize(("groups", "top_groups"), [(2, 1), (4, 2), (4, 4), (17, 3), (34, 5)])
@pytest.mark.parametrize("best", [1, 2])
def test_groups_of_experts(groups: int, top_groups: int, best: int):
    """From one expert each to half of all, by one score or two; equal groups fall to the first ones."""
    size = 34 // groups
    count = size * groups
    fields = {"groups": groups, "top_groups": top_groups, "group_best": best, "score": Score.SIGMOID}
    routing = Routing(num_experts=count, top_k=min(3, size * top_groups), **fields)  # type: ignore[arg-type]
    logits = random(20, count, dtype=F32, scale=2)
    logits[10:] = logits[10:].round()
    correction = random(count, dtype=F32, seed=3, scale=0.1)
    for added in (None, correction):
        expected, chosen = route(logits, added, routing)
        weights, experts = CpuOps(F32).route(logits, added, routing)
        assert torch.equal(experts, chosen)
        torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)


def test_a_correction_chooses_and_does_not_weigh():
    logits, correction = torch.zeros(1, 5), torch.tensor([0.0, 0.0, 3.0, 0.0, 1.0])
    routing = Routing(num_experts=5, top_k=2, score=Score.SIGMOID)
    weights, experts = CpuOps(BF16).route(logits, correction, routing)
    assert experts.tolist() == [[2, 4]]
    torch.testing.assert_close(weights, torch.tensor([[0.5, 0.5]]))


def test_no_tokens():
    routing = Routing(num_experts=5, top_k=2)
    weights, experts = CpuOps(BF16).route(torch.empty(0, 5), None, routing)
    assert weights.shape == experts.shape == (0, 2)


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 31, 33, 48])
def test_sums_and_what_lies_beside_them(width: int, dtype: torch.dtype, threads: int):
    """Of tokens with one expert and with several."""
    kernels = CpuOps(dtype)
    for top_k in (1, 2, 4):
        experts = torch.stack(
            [torch.randperm(4, generator=torch.Generator().manual_seed(t))[:top_k] for t in range(6)]
        )
        places = dispatch(experts, 4).places
        y, shared = random(6 * top_k, width, dtype=dtype), random(6, width, dtype=dtype, seed=1)
        weights, memory = random(6, top_k, dtype=F32, seed=2), torch.full((8, width), BESIDE, dtype=dtype)
        tensors = {"y": y, "weights": weights, "places": places, "shared": shared, "out": memory[1:]}
        addresses = {name: each.data_ptr() for name, each in tensors.items()}
        record = CombineRecord(**addresses, gate=0, width=width, top_k=top_k)
        kernels.team.run_one(kernels.experts.sum, 6, record, 1)
        exact = combine(y.double(), weights.double(), places, shared.double())
        tolerance = 2**-8 if dtype == BF16 else 1e-5
        torch.testing.assert_close(memory[1:-1].double(), exact, rtol=tolerance, atol=1e-5)
        assert (memory[[0, -1]] == BESIDE).all()


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 33])
def test_weighed_inputs_and_what_lies_beside_them(width: int, dtype: torch.dtype):
    """Pairs in any order; one that no thread computes stays."""
    kernels, places = CpuOps(dtype), torch.tensor([[3, 0], [2, 1]])
    x, weights = random(2, width, dtype=dtype), random(2, 2, dtype=F32, seed=1)
    memory = torch.full((6, width), BESIDE, dtype=dtype)
    tensors = {"x": x, "weights": weights, "places": places, "out": memory[1:]}
    record = WeighRecord(**{name: each.data_ptr() for name, each in tensors.items()}, width=width, top_k=2)
    kernels.team.run_one(kernels.experts.weigh, 3, record, 1)
    for pair in range(3):
        token, j = divmod(pair, 2)
        expected = (x[token].float() * weights[token, j]).to(dtype)
        assert torch.equal(memory[1 + int(places[token, j])], expected)
    assert (memory[[0, 2, 5]] == BESIDE).all()
