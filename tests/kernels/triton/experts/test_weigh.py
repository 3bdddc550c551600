"""Inputs of each token's experts, weighed: pair by pair and at the edges of a program."""

import pytest
import torch

from kernels.triton.experts import combine as module
from kernels.triton.experts.combine import weigh
from tests.kernels.tolerances import random
from tests.kernels.triton.conftest import Where


@pytest.mark.parametrize("width", [1, 15, 16, 17, 40])
@pytest.mark.parametrize(("tokens", "top_k"), [(1, 1), (1, 3), (4, 1), (3, 2)])
def test_every_pair_is_where_its_place_is(
    where: Where, tokens: int, top_k: int, width: int, monkeypatch: pytest.MonkeyPatch
):
    """Rounded once: the product of float32 in the inputs' dtype."""
    monkeypatch.setattr(module, "BLOCK", 16)
    x, weights = random(tokens, width, dtype=where.dtype), random(tokens, top_k, dtype=torch.float32, seed=1)
    places = torch.randperm(tokens * top_k, generator=torch.Generator().manual_seed(2)).view(tokens, top_k)
    for kind in (torch.int32, torch.int64):
        moved = (each.to(where.device) for each in (x, weights, places.to(kind)))
        result = weigh(*moved).cpu()
        assert result.shape == (tokens * top_k, width) and result.dtype == where.dtype
        for t, row in enumerate(places.tolist()):
            for j, place in enumerate(row):
                assert torch.equal(result[place], (x[t].float() * weights[t, j]).to(where.dtype))


def test_no_tokens(where: Where):
    x = torch.empty(0, 9, dtype=where.dtype, device=where.device)
    weights = torch.empty(0, 2, device=where.device)
    assert weigh(x, weights, weights.int()).shape == (0, 9)


def test_a_weight_of_nothing_and_what_is_no_number(device: torch.device):
    """0 * NaN is NaN, in its own pair alone; signs of zeros are kept."""
    x = torch.tensor([[torch.nan, -1.0, torch.inf], [1.0, 2.0, 3.0]], device=device)
    weights = torch.tensor([[0.0], [1.0]], device=device)
    result = weigh(x, weights, torch.tensor([[1], [0]], device=device)).cpu()
    assert result[0].tolist() == [1.0, 2.0, 3.0]
    assert result[1, [0, 2]].isnan().all() and result[1, 1] == 0 and result[1, 1].signbit()
