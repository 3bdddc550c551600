"""The compiled operations of a mixture of experts against those of kernels.ops.experts."""

import pytest
import torch

from kernels.cpu.experts.records import WeighRecord
from kernels.cpu_ops import CpuOps
from kernels.ops.experts.dispatch import combine, dispatch, route, weigh
from kernels.ops.experts.routing import Routing, Score
from tests.kernels.tolerances import assert_close, random

pytestmark = pytest.mark.cpu_kernels

F32 = torch.float32
ROUTINGS = {
    "softmax": Routing(num_experts=60, top_k=4, normalized=True, scale=2.5),
    "one of few": Routing(num_experts=2, top_k=1),
    "all": Routing(num_experts=17, top_k=17),
    "sigmoid": Routing(num_experts=40, top_k=6, score=Score.SIGMOID, normalized=True, least_sum=1e-20),
    "groups": Routing(
        num_experts=24, top_k=4, score=Score.SIGMOID, groups=6, top_groups=2, group_best=2, scale=1.5
    ),
    "groups by their best": Routing(num_experts=24, top_k=5, groups=3, top_groups=2),
    "softmax of chosen": Routing(num_experts=33, top_k=4, score=Score.SOFTMAX_OF_CHOSEN),
    "sigmoid of chosen": Routing(num_experts=17, top_k=3, score=Score.SIGMOID_OF_CHOSEN),
    "sparse mixer": Routing(num_experts=16, top_k=2, score=Score.SPARSE_MIXER, tolerance=0.4),
}


@pytest.fixture(scope="module")
def kernels() -> CpuOps:
    return CpuOps(torch.bfloat16)


@pytest.mark.parametrize(
    ("case", "corrected"), [*((case, False) for case in ROUTINGS), ("softmax", True), ("groups", True)]
)
def test_route(case: str, corrected: bool, kernels: CpuOps):
    """The same experts, also of equal scores, and the weights to some roundings; alone as among others."""
    routing = ROUTINGS[case]
    logits = random(50, routing.num_experts, dtype=F32, scale=3)
    logits[40:] = logits[40:].round()
    correction = random(routing.num_experts, dtype=F32, scale=0.1, seed=1) if corrected else None
    expected, chosen = route(logits, correction, routing)
    weights, experts = kernels.route(logits, correction, routing)
    assert torch.equal(experts, chosen)
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
    for row in (0, 7, 45):
        alone = kernels.route(logits[row : row + 1], correction, routing)
        assert torch.equal(alone[0][0], weights[row]) and torch.equal(alone[1][0], experts[row])


def test_nonsense_is_routed_somewhere(kernels: CpuOps):
    """Logits without an order lead to experts that exist."""
    routing = ROUTINGS["softmax"]
    _, experts = kernels.route(torch.full((2, 60), torch.nan), None, routing)
    assert ((experts >= 0) & (experts < 60)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, F32])
@pytest.mark.parametrize("width", [16, 50])
def test_weigh(dtype: torch.dtype, width: int):
    """The same bits."""
    kernels = CpuOps(dtype)
    x, weights = random(5, width, dtype=dtype), random(5, 3, dtype=F32, seed=2)
    places = dispatch(torch.tensor([[2, 0, 1], [1, 2, 3], [2, 1, 0], [0, 3, 2], [3, 2, 1]]), 4).places
    out = torch.zeros(15, width, dtype=dtype)
    tensors = {"x": x, "weights": weights, "places": places, "out": out}
    record = WeighRecord(**{name: each.data_ptr() for name, each in tensors.items()}, width=width, top_k=3)
    kernels.team.run_one(kernels.experts.weigh, 15, record, 4)
    assert torch.equal(out, weigh(x, weights, places))
    for token in range(5):
        assert torch.equal(out[places[token, 1]], (x[token].float() * weights[token, 1]).to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, F32])
@pytest.mark.parametrize("width", [16, 50, 128])
def test_combine(dtype: torch.dtype, width: int):
    """With and without what all tokens have."""
    kernels = CpuOps(dtype)
    experts = torch.tensor([[2, 0, 1], [1, 2, 3], [2, 1, 0], [0, 3, 2], [3, 2, 1]])
    places = dispatch(experts, 4).places
    y, shared = random(15, width, dtype=dtype), random(5, width, dtype=dtype, seed=1)
    weights, gate = random(5, 3, dtype=F32, seed=2), random(5, dtype=F32, seed=3)
    error = 2**-8 if dtype == torch.bfloat16 else 1e-5
    for others in ((), (shared,), (shared, gate)):
        ours = kernels.combine(y, weights, places, *others)
        expected = combine(y.double(), weights.double(), places, *(other.double() for other in others))
        assert_close(ours, expected, 1e-5, error)
