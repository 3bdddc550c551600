"""The choice of experts, against the layers' operation."""

from dataclasses import replace

import pytest
import torch

from kernels.ops.experts.dispatch import route as reference
from kernels.ops.experts.routing import Routing, Score
from kernels.triton.experts.route import route
from tests.kernels.tolerances import random

GROUPED = {"num_experts": 12, "top_k": 3, "groups": 4, "top_groups": 2}
CASES: dict[str, Routing] = {
    "softmax": Routing(num_experts=7, top_k=3, normalized=True),
    "softmax, scaled": Routing(num_experts=60, top_k=1, scale=2.5),
    "softmax in groups": Routing(**GROUPED, scale=16.0),
    "sigmoid in groups of two": Routing(
        **GROUPED | {"group_best": 2}, score=Score.SIGMOID, normalized=True, least_sum=1e-20, scale=2.5
    ),
    "softmax of chosen": Routing(num_experts=9, top_k=4, score=Score.SOFTMAX_OF_CHOSEN),
    "sigmoid of chosen": Routing(num_experts=5, top_k=2, score=Score.SIGMOID_OF_CHOSEN),
    "sparse mixer": Routing(num_experts=7, top_k=2, score=Score.SPARSE_MIXER, tolerance=0.6),
    "all": Routing(num_experts=6, top_k=6),
}


CORRECTED = [(case, True) for case in CASES if case != "sparse mixer"]  # whose logits choose


@pytest.mark.parametrize(("case", "corrected"), [*((case, False) for case in CASES), *CORRECTED])
def test_the_choice_of_the_layers(case: str, corrected: bool, device: torch.device):
    """The same experts in the same order, and their weights to some roundings."""
    routing = CASES[case]
    logits = random(9, routing.num_experts, dtype=torch.float32, scale=2.0)
    correction = random(routing.num_experts, dtype=torch.float32, seed=1) if corrected else None
    moved = None if correction is None else correction.to(device)
    weights, experts = (part.cpu() for part in route(logits.to(device), moved, routing))
    expected, chosen = reference(logits, correction, routing)
    assert torch.equal(experts, chosen)
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)


def test_of_equal_scores_the_first_expert_is_chosen(device: torch.device):
    """Among experts, and among groups; zeros of either sign are equal."""
    logits = torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0, 1.0], [2.0] * 6, [-0.0, 0.0] * 3]).to(device)
    plain = Routing(num_experts=6, top_k=3, score=Score.SOFTMAX_OF_CHOSEN)
    assert route(logits, None, plain)[1].tolist() == [[1, 2, 4], [0, 1, 2], [0, 1, 2]]
    grouped = replace(plain, groups=3, top_groups=2)
    assert route(logits, None, grouped)[1].tolist() == [[1, 2, 0], [0, 1, 2], [0, 1, 2]]


@pytest.mark.filterwarnings("ignore:All-NaN")  # of the interpreter's numpy
def test_what_is_no_number_chooses_experts_that_there_are(device: torch.device):
    """Their weights are read: a number beyond them would be an address beyond them."""
    logits = torch.full((3, 6), torch.nan, device=device)
    logits[1, 2], logits[2] = 1.0, -torch.inf
    for routing in (Routing(num_experts=6, top_k=3), Routing(num_experts=6, top_k=3, groups=3, top_groups=2)):
        experts = route(logits, None, routing)[1]
        assert bool(((experts >= 0) & (experts < 6)).all())
        assert all(len(set(row)) == 3 for row in experts.tolist())


def test_a_token_alone_and_among_others(device: torch.device):
    """The same bits."""
    routing = CASES["sigmoid in groups of two"]
    logits = random(5, 12, dtype=torch.float32).to(device)
    weights, experts = route(logits, None, routing)
    alone = route(logits[3:4].contiguous(), None, routing)
    assert torch.equal(alone[0][0], weights[3]) and torch.equal(alone[1][0], experts[3])


@pytest.mark.parametrize(("num_experts", "top_k"), [(1, 1), (2, 1), (2, 2), (8, 8), (9, 1), (33, 5)])
@pytest.mark.parametrize("score", list(Score))
def test_sizes(num_experts: int, top_k: int, score: Score, device: torch.device):
    """One expert, all of them, and numbers around powers of two."""
    if score is Score.SPARSE_MIXER and top_k > 2:
        top_k = 2
    routing = Routing(num_experts=num_experts, top_k=top_k, score=score, tolerance=0.25)
    logits = random(3, num_experts, dtype=torch.float32, scale=3.0)
    weights, experts = (part.cpu() for part in route(logits.to(device), None, routing))
    expected, best = reference(logits, None, routing)
    assert torch.equal(experts, best)
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)


def test_no_tokens(device: torch.device):
    weights, experts = route(torch.empty(0, 6, device=device), None, Routing(num_experts=6, top_k=2))
    assert weights.shape == experts.shape == (0, 2) and experts.dtype == torch.int64


def test_experts_that_are_out_of_the_question(device: torch.device):
    """Logits of -inf: they are chosen last, and weigh nothing."""
    logits = torch.full((2, 6), -torch.inf, device=device)
    logits[0, 4], logits[1, [0, 5]] = 1.0, 2.0
    weights, experts = route(logits, None, Routing(num_experts=6, top_k=2, normalized=True))
    assert experts.tolist() == [[4, 0], [0, 5]] and weights.tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_a_correction_chooses_and_does_not_weigh(device: torch.device):
    logits, correction = torch.zeros(1, 4, device=device), torch.tensor([0.0, 9.0, 0.0, 5.0], device=device)
    routing = Routing(num_experts=4, top_k=2, score=Score.SIGMOID, scale=3.0)
    weights, experts = route(logits, correction, routing)
    assert experts.tolist() == [[1, 3]] and weights.tolist() == [[1.5, 1.5]]


def test_groups_by_their_two_best(device: torch.device):
    """The best expert of all may be in a group that is not among the best."""
    logits = torch.tensor([[9.0, -9.0, 5.0, 5.0, 4.0, 3.0]], device=device)
    routing = Routing(num_experts=6, top_k=2, groups=3, top_groups=1, score=Score.SOFTMAX_OF_CHOSEN)
    assert route(logits, None, routing)[1].tolist() == [[0, 1]]
    assert route(logits, None, replace(routing, group_best=2))[1].tolist() == [[2, 3]]
    logits[0, 4] = 6.5
    assert route(logits, None, replace(routing, group_best=2, top_groups=2))[1].tolist() == [[4, 2]]
