"""What adapters add to the products of pairs of tokens and experts: as much as to a token."""

import pytest
import torch

from kernels.cpu.compiler.records import Address
from kernels.cpu_ops import CpuOps
from kernels.ops.experts.dispatch import Dispatch, dispatch
from kernels.ops.layers.adapters import LayerParts, LowRank, StepAdapters
from kernels.torch_ops import Ops
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels
BF16 = torch.bfloat16
K, COLUMNS, EXPERTS, TOP_K = 51, 33, 5, 3


def expert(rank: int, seed: int) -> LayerParts:
    a, b = random(rank, K, dtype=BF16, seed=seed), random(COLUMNS, rank, dtype=BF16, seed=seed + 1)
    return (LowRank(a, b, 0.3, 0),)


LAYERS: list[list[LayerParts]] = [
    [expert(16, 10 * number) for number in range(EXPERTS)],
    [expert(8, 70), (), expert(17, 80), (), ()],
    [()] * EXPERTS,
]
"""Of three adapters: all experts, some of different ranks, none. Layer 0 has none, the experts are behind."""


def step(ops: Ops, owners: list[int], tokens: list[int]) -> StepAdapters:
    """tokens: sorted by their owners."""
    packed = {owner: ops.pack_adapter([(), *LAYERS[owner]]) for owner in dict.fromkeys(owners)}
    addresses = torch.tensor([packed[owner].address for owner in owners])
    groups = [(weights, owners.count(owner)) for owner, weights in packed.items()]
    return StepAdapters(torch.tensor(tokens), addresses, groups)


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=["bfloat16", "float32"], scope="module")
def ops(request: pytest.FixtureRequest) -> CpuOps:
    return CpuOps(request.param)


def routed(count: int) -> Dispatch:
    generator = torch.Generator().manual_seed(count)
    chosen = [torch.randperm(EXPERTS, generator=generator)[:TOP_K] for _ in range(count)]
    return dispatch(torch.stack(chosen), EXPERTS)


OWNERS = [owner for owner, count in ((0, 29), (1, 17), (2, 3)) for _ in range(count)]


def test_a_pair_is_a_token_of_a_layer(ops: CpuOps):
    """Bit for bit, however many pairs an expert has; pairs of tokens without an adapter are as they were."""
    count = len(OWNERS) + 6
    tokens = torch.randperm(count, generator=torch.Generator().manual_seed(3))[: len(OWNERS)].tolist()
    order = routed(count)
    x, y = (random(count * TOP_K, width, dtype=ops.dtype, seed=width) for width in (K, COLUMNS))
    found = ops.adapt_experts(y.clone(), x, 1, step(ops, OWNERS, tokens), order)
    owner_of = dict(zip(tokens, OWNERS, strict=True))
    for token in range(count):
        for place, chosen in zip(order.places[token].tolist(), order.experts[token].tolist(), strict=True):
            expected = y[place : place + 1].clone()
            if token in owner_of:
                alone = step(ops, [owner_of[token]], [0])
                ops.adapt(expected, x[place : place + 1], 1 + chosen, alone)
            assert torch.equal(found[place], expected[0]), (token, chosen)
    assert not torch.equal(found, y)


def test_torch_computes_the_same(ops: CpuOps):
    """But for the order of its sums."""
    order, tokens = routed(len(OWNERS)), list(range(len(OWNERS)))
    x, y = (random(len(OWNERS) * TOP_K, width, dtype=ops.dtype, seed=width) for width in (K, COLUMNS))
    compiled = ops.adapt_experts(y.clone(), x, 1, step(ops, OWNERS, tokens), order).float()
    plain = Ops().adapt_experts(y.clone(), x, 1, step(Ops(), OWNERS, tokens), order).float()
    size = 1 if ops.dtype == torch.float32 else 2**14
    assert (compiled - plain).abs().max() <= 4e-6 * size * plain.abs().max()


def test_compiled_as_written():
    """The list of pairs, sorted by expert and adapter, is that of the same function run by Python."""
    ops, order = CpuOps(torch.float32), routed(len(OWNERS))
    adapters, listed = step(ops, OWNERS, list(range(len(OWNERS)))[::-1]), list[list[torch.Tensor]]()
    for run in (lambda record: ops.run(ops.experts.pair, 1, record, 1), reference):
        record, memory = ops._pair_record(order.experts, order.places, EXPERTS)
        record.tokens, record.adapters = adapters.tokens.data_ptr(), adapters.addresses.data_ptr()
        record.count = len(OWNERS)
        run(record)
        listed.append(memory[:2])
    for compiled, written in zip(*listed, strict=True):
        assert torch.equal(compiled, written)
    pairs, addresses = (each.flatten().tolist() for each in listed[0])
    assert sorted(pairs) == list(range(len(OWNERS) * TOP_K))
    runs = 1 + sum(one != other for one, other in zip(addresses, addresses[1:], strict=False))
    assert runs == len(set(addresses))


def reference(record: Address) -> None:
    from kernels.cpu.adapters.pairs import pair_adapters

    pair_adapters.reference(record, 0, 1, 0)
