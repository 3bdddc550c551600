"""Sums of what the ranges of a product gave: their order, their biases, and the edges of a program."""

import pytest
import torch

from kernels.triton.matmul import range_launch as module
from kernels.triton.matmul.range_launch import sum_ranges
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.conftest import Where
from tests.kernels.triton.references import add_as_tree, sum_ranges_reference


@pytest.mark.parametrize("features", [1, 15, 16, 17, 40])
@pytest.mark.parametrize(("ranges", "tokens"), [(1, 1), (2, 3), (16, 2)])
def test_widths(where: Where, ranges: int, tokens: int, features: int, monkeypatch: pytest.MonkeyPatch):
    """Around the number of features of a program; what lies behind the result stays."""
    monkeypatch.setattr(module, "BLOCK", 16)
    parts = random(ranges, tokens, features, dtype=torch.float32)
    bias = random(features, dtype=where.dtype, seed=1)
    for added in (None, bias):
        room = torch.full((tokens + 1, features), 7.0, dtype=where.dtype, device=where.device)
        moved = None if added is None else added.to(where.device)
        sum_ranges(parts.to(where.device), moved, room[:tokens])
        exact = sum_ranges_reference(parts, added)
        assert_close(room[:tokens].cpu(), exact, 8 * where.absolute, 8 * where.relative)
        assert (room[tokens:] == 7).all()


def test_a_bias_for_each_owner(where: Where):
    """Of products by expert: that of the row's own."""
    parts = random(2, 4, 5, dtype=torch.float32)
    bias, owners = random(3, 5, dtype=where.dtype, seed=1), torch.tensor([2, 0, 2, 1], dtype=torch.int32)
    out = torch.empty(4, 5, dtype=where.dtype, device=where.device)
    sum_ranges(parts.to(where.device), bias.to(where.device), out, owners.to(where.device))
    exact = torch.cat(
        [sum_ranges_reference(parts[:, n : n + 1], bias[owner]) for n, owner in enumerate(owners)]
    )
    assert_close(out.cpu(), exact, 4 * where.absolute, 4 * where.relative)


def test_ranges_are_added_in_ascending_order_and_the_bias_last(device: torch.device):
    """Large numbers swallow what comes behind them, until they are gone."""
    large = 2.0**24
    for terms, bias, total in (
        ([1.0, large, -large], None, 0.0),
        ([large, -large, 1.0], None, 1.0),
        ([large, 1.0, -large], None, 0.0),
        ([large], 1.0, large),
        ([large, -large], 1.0, 1.0),
    ):
        parts = torch.tensor(terms, device=device).view(-1, 1, 1)
        added = None if bias is None else torch.tensor([bias], device=device)
        out = torch.empty(1, 1, device=device)
        sum_ranges(parts, added, out)
        assert out.item() == total, terms


@pytest.mark.parametrize("ranges", [1, 2, 4, 8])
def test_a_tree(ranges: int, device: torch.device):
    """Bit for bit, in another order than one after the other; the bias is added last."""
    parts, bias = random(ranges, 3, 40, dtype=torch.float32), random(40, dtype=torch.float32, seed=1)
    for added in (None, bias):
        out = torch.empty(3, 40, device=device)
        sum_ranges(parts.to(device), None if added is None else added.to(device), out, as_tree=True)
        assert torch.equal(out.cpu(), add_as_tree(parts) + (0 if added is None else added))
    chain = torch.empty(3, 40, device=device)
    sum_ranges(parts.to(device), bias.to(device), chain)
    assert torch.equal(chain, out) is (ranges <= 2)


@pytest.mark.parametrize(("tokens", "features"), [(0, 4), (3, 0)])
def test_nothing_to_add(tokens: int, features: int, device: torch.device):
    out = torch.empty(tokens, features, device=device)
    sum_ranges(torch.empty(2, tokens, features, device=device), None, out)
    assert out.shape == (tokens, features)


def test_tokens_are_independent(where: Where):
    def summed(parts: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(parts), 9, dtype=where.dtype, device=where.device)
        sum_ranges(parts.transpose(0, 1).contiguous(), None, out)
        return out

    assert_rows_are_independent(summed, random(4, 3, 9, dtype=torch.float32).to(where.device))
