"""The weighted sum of experts' results, pair by pair and at the edges of a program."""

import pytest
import torch

from kernels.triton.experts import combine as module
from kernels.triton.experts.combine import combine
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.conftest import Where


def exact_sum(
    y: torch.Tensor,
    weights: torch.Tensor,
    places: torch.Tensor,
    shared: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """The formula in float64, token by token."""
    rows = []
    for t, (row, at) in enumerate(zip(weights.double(), places.tolist(), strict=True)):
        total = sum(weight * y[place].double() for weight, place in zip(row, at, strict=True))
        if shared is not None:
            total = total + shared[t].double() * (1.0 if gate is None else gate[t].double().sigmoid())
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("width", [1, 7, 15, 16, 17, 33])
@pytest.mark.parametrize(("tokens", "top_k"), [(1, 1), (3, 2), (2, 8)])
def test_widths(where: Where, tokens: int, top_k: int, width: int, monkeypatch: pytest.MonkeyPatch):
    """Around the number of values of a program; of one expert per token and of eight."""
    monkeypatch.setattr(module, "BLOCK", 16)
    y = random(tokens * top_k, width, dtype=where.dtype)
    weights = random(tokens, top_k, dtype=torch.float32, seed=1)
    places = torch.randperm(tokens * top_k, generator=torch.Generator().manual_seed(2)).view(tokens, top_k)
    shared = random(tokens, width, dtype=where.dtype, seed=3)
    gate = random(tokens, dtype=torch.float32, seed=4, scale=4.0)
    for more in ((), (shared,), (shared, gate)):
        moved = [each.to(where.device) for each in (y, weights, places, *more)]
        result = combine(*moved)
        assert result.shape == (tokens, width) and result.dtype == where.dtype
        exact = exact_sum(y, weights, places, *more)
        assert_close(result.cpu(), exact, 4 * where.absolute, 4 * where.relative)


def test_no_tokens(where: Where):
    y = torch.empty(0, 9, dtype=where.dtype, device=where.device)
    weights, places = torch.empty(0, 2, device=where.device), torch.empty(0, 2, device=where.device).long()
    assert combine(y, weights, places).shape == (0, 9)


def test_products_are_rounded_before_they_are_added(device: torch.device):
    """Not fused: x * x is rounded to 1 + 2 ** -11, and what is left of it is lost."""
    x = 1 + 2.0**-12
    y = torch.tensor([[1.0 + 2.0**-11], [x]], device=device)
    weights = torch.tensor([[-1.0, x]], device=device)
    assert combine(y, weights, torch.tensor([[0, 1]], device=device)).item() == 0.0


def test_pairs_are_added_in_ascending_order(device: torch.device):
    """Of the token's own list, wherever their results are."""
    y = torch.tensor([[2.0**24], [1.0], [-(2.0**24)]], device=device)
    ones = torch.ones(1, 3, device=device)
    for order, total in (([0, 1, 2], 0.0), ([0, 2, 1], 1.0), ([2, 0, 1], 1.0), ([1, 0, 2], 0.0)):
        assert combine(y, ones, torch.tensor([order], device=device)).item() == total


def test_gates_at_both_ends(device: torch.device):
    """exp(-gate) may be infinite, or nothing."""
    y, shared = torch.zeros(4, 3, device=device), torch.full((4, 3), 2.0, device=device)
    places = torch.arange(4, device=device)[:, None]
    gate = torch.tensor([-200.0, 200.0, 0.0, torch.nan], device=device)
    result = combine(y, torch.ones(4, 1, device=device), places, shared, gate)
    assert result[:3, 0].tolist() == [0.0, 2.0, 1.0] and result[3].isnan().all()


def test_what_is_no_number_stays_in_its_token(device: torch.device):
    """Also where its weight is 0."""
    y = torch.ones(4, 5, device=device)
    y[1, 2], y[3, 0] = torch.nan, torch.inf
    weights = torch.tensor([[1.0, 0.0], [2.0, 1.0]], device=device)
    result = combine(y, weights, torch.tensor([[0, 1], [2, 3]], device=device))
    assert result[0, 2].isnan() and result[1, 0] == torch.inf
    assert result[0, [0, 1, 3, 4]].tolist() == [1.0] * 4 and result[1, 1:].tolist() == [3.0] * 4


def test_tokens_are_independent(where: Where):
    y = random(8, 21, dtype=where.dtype).to(where.device)
    weights = random(4, 2, dtype=torch.float32, seed=1).to(where.device)
    places = torch.randperm(8, generator=torch.Generator().manual_seed(5)).view(4, 2).to(where.device)
    assert_rows_are_independent(lambda w, p: combine(y, w, p), weights, places)
