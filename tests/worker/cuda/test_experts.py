"""A mixture of experts on the CUDA path, beside the same layer expert by expert."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu.low_bits import random_low_bits
from benchmarks.gpu.works import Setting
from kernels.ops.experts.routing import Routing, Score
from kernels.torch_ops import Ops
from kernels.triton_ops import TritonOps
from tests.kernels.tolerances import random
from tests.worker.cuda.host_devices import interpret
from worker.config.experts import ClampedSwiglu, ExpertsConfig
from worker.layers.experts.experts import Experts
from worker.layers.matrix import LowBitMethod
from worker.parallel import Placement

WIDTH = 40
PLAIN = ExpertsConfig(
    routing=Routing(num_experts=5, top_k=2, normalized=True),
    intermediate_size=24,
    shared_size=16,
    shared_gate=True,
)
VARIANTS = {
    "a gated one for all tokens": PLAIN,
    "biases, a correction": replace(
        PLAIN,
        routing=replace(PLAIN.routing, score=Score.SIGMOID),
        corrected=True,
        router_bias=True,
        bias=True,
        swiglu=ClampedSwiglu(1.7, 0.5),
    ),
    "inputs that are weighed": replace(PLAIN, weighs_inputs=True, shared_gate=False),
}
BATCH: Any = SimpleNamespace(adapters=None)
"""No part of experts reads it."""


@pytest.fixture
def make_experts(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Experts]:
    """With random weights."""
    interpret(monkeypatch)

    def make(variant: str) -> Experts:
        experts = Experts(VARIANTS[variant], WIDTH, "silu", Placement(torch.float32, torch.device("cpu")))
        for seed, parameter in enumerate(experts.parameters()):
            parameter.copy_(random(*parameter.shape, dtype=torch.float32, seed=seed))
        return experts

    return make


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_bits_are_those_of_single_products(
    variant: str, make_experts: Callable[[str], Experts], monkeypatch: pytest.MonkeyPatch
):
    """Each expert's rows multiplied by themselves, of which the host knows how many there are."""
    experts, x = make_experts(variant), random(9, WIDTH, dtype=torch.float32, seed=50)
    assert isinstance(experts.expert_down.stacked, torch.Tensor)
    result = experts(x, BATCH)
    monkeypatch.setattr(TritonOps, "sort_by_expert", Ops.sort_by_expert)
    monkeypatch.setattr(TritonOps, "expert_linear", Ops.expert_linear)
    monkeypatch.setattr(TritonOps, "weigh", staticmethod(Ops.weigh))
    assert torch.equal(experts(x, BATCH), result)


@pytest.mark.parametrize("form", ["int4-g32", "e2m1"])
def test_weights_in_few_bits_have_the_bits_of_single_products(
    form: str, make_experts: Callable[[str], Experts], monkeypatch: pytest.MonkeyPatch
):
    """Of both products, with biases; in company and alone."""
    experts = make_experts("biases, a correction").to(torch.bfloat16)
    x = random(9, WIDTH, dtype=torch.bfloat16, seed=50)
    for matrices in (experts.expert_gate_up, experts.expert_down):
        (slot,) = matrices.slots()
        slot.hold(LowBitMethod(random_low_bits(Setting(x.device), tuple(slot.weight.shape), form)))
    result = experts(x, BATCH)
    assert torch.equal(experts(x[4:5], BATCH)[0], result[4])
    monkeypatch.setattr(TritonOps, "sort_by_expert", Ops.sort_by_expert)
    monkeypatch.setattr(TritonOps, "expert_linear", Ops.expert_linear)
    monkeypatch.setattr(TritonOps, "weigh", staticmethod(Ops.weigh))
    assert torch.equal(experts(x, BATCH), result)


def test_the_host_reads_nothing(make_experts: Callable[[str], Experts], monkeypatch: pytest.MonkeyPatch):
    """Of what is chosen: it would wait for the device, which a captured graph cannot do."""
    experts, x = make_experts("a gated one for all tokens"), random(3, WIDTH, dtype=torch.float32)

    def read(*_: object) -> None:
        raise AssertionError("a tensor is read by the host")

    for name in ("tolist", "item", "__int__", "__bool__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, read)
    experts(x, BATCH)
    monkeypatch.setattr(TritonOps, "sort_by_expert", Ops.sort_by_expert)
    monkeypatch.setattr(TritonOps, "expert_linear", Ops.expert_linear)
    monkeypatch.setattr(TritonOps, "weigh", staticmethod(Ops.weigh))
    with pytest.raises(AssertionError, match="read by the host"):
        experts(x, BATCH)


def test_a_row_without_company_has_its_bits(make_experts: Callable[[str], Experts]):
    experts, x = make_experts("biases, a correction"), random(7, WIDTH, dtype=torch.float32, seed=50)
    assert torch.equal(experts(x[4:5], BATCH)[0], experts(x, BATCH)[4])
