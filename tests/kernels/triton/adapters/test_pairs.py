"""Pairs of experts and tokens that have an adapter: their order and tiles, and that a pair is a token of a
layer, bit for bit."""

from typing import TYPE_CHECKING

import pytest
import torch

from kernels.ops.layers.adapters import TILE, LayerParts, LowRank
from kernels.triton.adapters import pairs as module
from kernels.triton.adapters.adapt import adapt, adapt_experts
from kernels.triton.adapters.pack import ENTRY, DeviceAdapter
from kernels.triton.adapters.pairs import AdaptedOrder, with_adapters
from kernels.triton.experts.dispatch import sort_by_expert
from kernels.triton.matmul import ranges
from tests.kernels.tolerances import random
from tests.kernels.triton.adapters.test_adapt import step
from tests.kernels.triton.conftest import Where

if TYPE_CHECKING:
    from ptx_emulator.launch import Emulator

DEPTH, SIZES, EXPERTS, TOP_K = 136, (33, 24), 5, 3
OWNERS = [0] * 20 + [None] * 3 + [1, 2, 1, None, 1]
T = len(OWNERS)


def expert(rank: int, seed: int) -> LayerParts:
    """Two parts that share one a, which is float16 where the seed is odd."""
    a = random(rank, DEPTH, dtype=(torch.bfloat16, torch.float16)[seed % 2], seed=seed, scale=DEPTH**-0.5)
    b = (random(size, rank, dtype=torch.bfloat16, seed=seed + size) for size in SIZES)
    return tuple(LowRank(a, each, 0.3, first) for each, first in zip(b, (0, SIZES[0]), strict=True))


LAYERS: list[list[LayerParts]] = [
    [expert(16, 10 * number) for number in range(EXPERTS)],
    [expert(8, 71), (), expert(17, 80)[1:], (), ()],
    [()] * EXPERTS,
]
"""Of three adapters: all experts, some of different ranks and parts, none. Layer 0 has none, the experts are
behind."""


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 values and more."""
    monkeypatch.setattr(ranges, "LEAST_RANGE", 64)


@pytest.fixture
def adapters(device_without_a_card: "Emulator | None", request: pytest.FixtureRequest) -> list[DeviceAdapter]:
    names = request.fixturenames
    device = (
        request.getfixturevalue("where").device if "where" in names else request.getfixturevalue("device")
    )
    adapters = [DeviceAdapter([(), *layers], device) for layers in LAYERS]
    for tensor in (tensor for adapter in adapters for tensor in adapter.tensors):
        if device_without_a_card is not None:
            device_without_a_card.allow(tensor)
    return adapters


def routed(count: int) -> torch.Tensor:
    scores = torch.rand(count, EXPERTS, generator=torch.Generator().manual_seed(count))
    return scores.argsort(-1)[:, :TOP_K].contiguous()


def ordered(
    adapters: list[DeviceAdapter], owners: list[int | None], experts: torch.Tensor, device: torch.device
) -> AdaptedOrder:
    experts = experts.to(device)
    order = sort_by_expert(experts, EXPERTS, torch.float32, 16)
    return with_adapters(order, experts, EXPERTS, step(adapters, owners, device, (1, *[2] * EXPERTS)))


@pytest.mark.parametrize("at_a_time", [16, 1024])
def test_pairs_and_tiles(
    adapters: list[DeviceAdapter], device: torch.device, at_a_time: int, monkeypatch: pytest.MonkeyPatch
):
    """Every pair that has an adapter is in one tile, with those of its adapter and expert alone."""
    monkeypatch.setattr(module, "BLOCK", at_a_time)
    monkeypatch.setattr(module, "TILES", 1 + at_a_time % 16)
    experts = routed(T)
    order = ordered(adapters, OWNERS, experts, device)
    owners = {adapter.address: number for number, adapter in enumerate(adapters)}
    addresses = {address + 8 * ENTRY * expert: (number, expert)
                 for address, number in owners.items() for expert in range(EXPERTS)}  # fmt: skip
    places, tokens = order.adapted_pairs.tolist(), order.adapted_tokens.tolist()
    found, groups = list[tuple[int, int]](), list[tuple[int, int]]()
    for address, first, count in order.adapted_tiles.tolist():
        if not address:
            assert count == 0
            continue
        owner, expert = addresses[address]
        groups.append((owner, expert))
        assert 0 < count <= TILE
        for at in range(first, first + count):
            assert OWNERS[tokens[at]] == owner
            assert places[at] in order.places[tokens[at]].tolist()
            assert experts[tokens[at]].tolist()[order.places[tokens[at]].tolist().index(places[at])] == expert
            found.append((tokens[at], expert))
    assert groups == sorted(groups)
    wanted = [
        (token, expert)
        for token in range(T)
        if OWNERS[token] is not None
        for expert in experts[token].tolist()
    ]
    assert sorted(found) == sorted(wanted)


def test_no_tiles_without_pairs(adapters: list[DeviceAdapter], device: torch.device):
    for owners in list[list[int | None]](([None] * 4, [])):
        order = ordered(adapters, owners, routed(len(owners)) if owners else routed(1)[:0], device)
        assert not order.adapted_tiles.any()


@pytest.mark.parametrize("by_token", [False, True])
def test_a_pair_is_a_token_of_a_layer(where: Where, adapters: list[DeviceAdapter], by_token: bool):
    """Bit for bit, however many pairs an expert has; pairs of tokens without an adapter are as they were."""
    parts, experts = (1, *[2] * EXPERTS), routed(T)
    order = ordered(adapters, OWNERS, experts, where.device)
    x = random(T if by_token else T * TOP_K, DEPTH, dtype=where.dtype, seed=1).to(where.device)
    y = random(T * TOP_K, sum(SIZES), dtype=where.dtype, seed=2).to(where.device)
    given = step(adapters, OWNERS, where.device, parts)
    found = adapt_experts(y.clone(), x, 1, given, order, by_token)
    for token in (19, 20, 23):
        alone = step(adapters, [OWNERS[token]], where.device, parts)
        for place, chosen in zip(order.places[token].tolist(), experts[token].tolist(), strict=True):
            at = token if by_token else place
            expected = adapt(y[place : place + 1].clone(), x[at : at + 1], 1 + chosen, alone)
            assert torch.equal(found[place], expected[0]), (token, chosen)
    assert not torch.equal(found, y)
