"""Routing against the routers of transformers, and what it does with equal scores."""

from typing import Any

import pytest
import torch
import transformers
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.minimax_m2.modeling_minimax_m2 import MiniMaxM2TopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.phimoe.modeling_phimoe import PhimoeTopKRouter

from kernels.ops.experts.dispatch import combine, dispatch, route
from kernels.ops.experts.routing import Routing, Score
from tests.kernels.tolerances import random

WIDTH, TOKENS = 12, 40
GROUPED = {"n_routed_experts": 12, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3}
CASES: dict[str, tuple[Any, Any, dict[str, Any], Routing]] = {
    "mixtral": (
        MixtralTopKRouter,
        transformers.MixtralConfig,
        {"num_local_experts": 7, "num_experts_per_tok": 3},
        Routing(num_experts=7, top_k=3, normalized=True),
    ),
    "gpt-oss": (
        GptOssTopKRouter,
        transformers.GptOssConfig,
        {"num_local_experts": 9, "num_experts_per_tok": 4},
        Routing(num_experts=9, top_k=4, score=Score.SOFTMAX_OF_CHOSEN),
    ),
    "glm4": (
        Glm4MoeTopkRouter,
        transformers.Glm4MoeConfig,
        GROUPED | {"norm_topk_prob": True, "routed_scaling_factor": 2.5},
        Routing(
            **{"num_experts": 12, "top_k": 3, "groups": 4, "top_groups": 2, "group_best": 2},
            score=Score.SIGMOID,
            normalized=True,
            least_sum=1e-20,
            scale=2.5,
        ),
    ),
    "minimax": (
        MiniMaxM2TopKRouter,
        transformers.MiniMaxM2Config,
        {"num_local_experts": 7, "num_experts_per_tok": 3},
        Routing(num_experts=7, top_k=3, score=Score.SIGMOID, normalized=True),
    ),
    "phimoe": (
        PhimoeTopKRouter,
        transformers.PhimoeConfig,
        {"num_local_experts": 7, "num_experts_per_tok": 2, "router_jitter_noise": 0.3},
        Routing(num_experts=7, top_k=2, score=Score.SPARSE_MIXER, tolerance=0.6),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_routers_of_transformers(case: str):
    """The same experts, and the weights to some roundings."""
    router_class, config_class, fields, routing = CASES[case]
    router = router_class(config_class(hidden_size=WIDTH, **fields)).eval()
    for number, parameter in enumerate([*router.parameters(), *router.buffers()]):
        parameter.data.copy_(random(*parameter.shape, dtype=torch.float32, seed=number))
    x = random(TOKENS, WIDTH, dtype=torch.float32, seed=9)
    correction = getattr(router, "e_score_correction_bias", None)
    extra = []
    if case == "minimax":
        correction = random(routing.num_experts, dtype=torch.float32, seed=5)
        extra = [correction]
    with torch.no_grad():
        logits, expected, chosen = router(x, *extra)
        weights, experts = route(logits, correction, routing)
    assert torch.equal(experts.sort().values, chosen.sort().values)
    theirs = torch.zeros_like(logits).scatter(1, chosen, expected)
    torch.testing.assert_close(torch.zeros_like(logits).scatter(1, experts, weights), theirs)


def test_of_equal_scores_the_first_expert_is_chosen():
    """Among experts, and among groups."""
    logits = torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0, 1.0], [2.0] * 6])
    plain = Routing(num_experts=6, top_k=3)
    assert route(logits, None, plain)[1].tolist() == [[1, 2, 4], [0, 1, 2]]
    grouped = Routing(num_experts=6, top_k=3, groups=3, top_groups=2)
    assert route(logits, None, grouped)[1].tolist() == [[1, 2, 0], [0, 1, 2]]


def test_dispatch_and_combine():
    """Pairs are sorted by expert, and each token gets back the weighted sum of its own."""
    experts = torch.tensor([[2, 0], [1, 2], [2, 1]])
    order = dispatch(experts, 4)
    assert order.tokens.tolist() == [0, 1, 2, 0, 1, 2]
    assert order.counts.tolist() == [1, 2, 3, 0]
    x, weights = random(3, 5, dtype=torch.float32), random(3, 2, dtype=torch.float32, seed=1)
    factors = torch.cat([torch.full((n,), float(e)) for e, n in enumerate(order.counts.tolist())])
    y = x[order.tokens] * factors[:, None]
    shared, gate = random(3, 5, dtype=torch.float32, seed=2), random(3, dtype=torch.float32, seed=3)
    expected = x * (experts * weights).sum(1, keepdim=True)
    torch.testing.assert_close(combine(y, weights, order.places), expected)
    torch.testing.assert_close(
        combine(y, weights, order.places, shared, gate), expected + shared * gate.sigmoid()[:, None]
    )
