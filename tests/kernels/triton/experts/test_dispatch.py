"""The order of pairs by expert, against the layers' operation; and the tiles of each expert."""

import pytest
import torch

from kernels.ops.experts.dispatch import dispatch
from kernels.triton.experts import dispatch as kernels
from kernels.triton.experts.dispatch import ExpertOrder, sort_by_expert
from kernels.triton.experts.tile_sizes import most_tiles


def chosen(tokens: int, top_k: int, num_experts: int) -> torch.Tensor:
    """Different ones for each token."""
    scores = torch.rand(tokens, num_experts, generator=torch.Generator().manual_seed(tokens))
    return scores.argsort(-1)[:, :top_k].contiguous()


def check(experts: torch.Tensor, num_experts: int, order: ExpertOrder) -> None:
    expected = dispatch(experts, num_experts)
    assert order.tokens.tolist() == expected.tokens.tolist()
    assert order.places.tolist() == expected.places.tolist()
    ends = expected.counts.cumsum(0).tolist()
    assert order.starts.tolist() == [0, *ends]
    assert order.owners.tolist() == sorted(experts.flatten().tolist())
    tiles = [
        (expert, first)
        for expert, (begin, end) in enumerate(zip([0, *ends], ends, strict=False))
        for first in range(begin, end, order.tile)
    ]
    there = len(tiles)
    assert list(zip(order.tile_experts[:there].tolist(), order.tile_firsts.tolist(), strict=False)) == tiles
    assert order.tile_experts[there:].tolist() == [-1] * (len(order.tile_experts) - there)


@pytest.mark.parametrize(
    ("tokens", "top_k", "num_experts", "tile"), [(1, 2, 5, 16), (40, 3, 7, 16), (9, 4, 4, 32), (90, 1, 3, 16)]
)
def test_the_order_of_the_layers(tokens: int, top_k: int, num_experts: int, tile: int, device: torch.device):
    experts = chosen(tokens, top_k, num_experts)
    check(experts, num_experts, sort_by_expert(experts.to(device), num_experts, torch.float32, tile))


def test_more_pairs_and_tiles_than_a_program_looks_at(device: torch.device, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernels, "BLOCK", 32)
    monkeypatch.setattr(kernels, "TILES", 2)
    experts = chosen(70, 2, 3)
    check(experts, 3, sort_by_expert(experts.to(device), 3, torch.float32, 16))


def test_one_expert_has_all_pairs(device: torch.device):
    experts = torch.full((50, 1), 2, device=device)
    check(experts.cpu(), 4, sort_by_expert(experts, 4, torch.float32, 16))


def test_tiles_that_pairs_may_have():
    """The worst case is reached, and not exceeded: by counts of pairs of each expert."""
    for pairs in range(1, 40):
        for num_experts in (1, 2, 5):
            worst = 0
            for full in range(num_experts):  # experts with one pair each, and one with the rest
                if full < pairs:
                    worst = max(worst, full + -(-(pairs - full) // 16))
            assert most_tiles(pairs, num_experts, 16) == worst


def test_no_pairs(device: torch.device):
    order = sort_by_expert(torch.zeros(0, 2, dtype=torch.int64, device=device), 3, torch.float32)
    assert order.places.shape == (0, 2) and len(order.tile_experts) == 0


@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 16])
@pytest.mark.parametrize("num_experts", [1, 2, 3, 8])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_sizes(
    tokens: int, num_experts: int, kind: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
):
    """Pairs around those that a program looks at; one expert, and numbers that are no power of two."""
    monkeypatch.setattr(kernels, "BLOCK", 16)
    monkeypatch.setattr(kernels, "TILES", 1)
    experts = chosen(tokens, min(2, num_experts), num_experts).to(kind)
    check(experts.long(), num_experts, sort_by_expert(experts.to(device), num_experts, torch.float32, 4))


def test_the_first_and_the_last_expert_alone(device: torch.device):
    """Starts of those without pairs are where they would begin."""
    for expert, starts in ((0, [0, 5, 5, 5]), (2, [0, 0, 0, 5])):
        experts = torch.full((5, 1), expert, device=device)
        order = sort_by_expert(experts, 3, torch.float32, 16)
        assert order.starts.tolist() == starts
        check(experts.cpu(), 3, order)
