"""The embedding of a rank's share of the vocabulary."""

import pytest
import torch

from kernels.triton.elementwise.embedding import embed, embed_reference
from tests.kernels.tolerances import random
from tests.kernels.triton.conftest import Where


@pytest.mark.parametrize(("first", "held", "width"), [(0, 40, 24), (16, 9, 1100), (39, 1, 8)])
def test_embedding(where: Where, first: int, held: int, width: int):
    """A rank's share: tokens before, within and behind it; the other ranks' are zero, also where the share's
    neighbours in memory are NaN."""
    whole = torch.full((held + 2, width), torch.nan, dtype=where.dtype)
    whole[1:-1] = random(held, width, dtype=where.dtype)
    table = whole.to(where.device)[1:-1]
    ids = torch.tensor([0, first, first + held - 1, first + held, 39, first, 17])
    result = embed(ids.to(where.device), table, first)
    assert torch.equal(result.cpu(), embed_reference(ids, whole[1:-1], first))


def test_shares_add_up(where: Where):
    """The sum over the ranks, one of which has fewer rows, is the lookup in the whole table."""
    table, ids = random(10, 16, dtype=where.dtype), torch.tensor([9, 0, 3, 4, 8, 9])
    there = table.to(where.device), ids.to(where.device)
    shares = [embed(there[1], there[0][first : first + 4], first) for first in (0, 4, 8)]
    assert torch.equal(sum(shares).cpu(), table[ids])
    assert embed(there[1][:0], there[0]).shape == (0, 16)


@pytest.mark.parametrize("width", [1, 8, 1023, 1025, 2048])
def test_widths(where: Where, width: int):
    """Around the number of values of a program."""
    table, ids = random(5, width, dtype=where.dtype), torch.tensor([4, 0, 2])
    assert torch.equal(embed(ids.to(where.device), table.to(where.device)).cpu(), table[ids])


def test_ids_beyond_the_table_are_zero(where: Where):
    """Before the first row, behind the last one, and far outside."""
    table = random(4, 16, dtype=where.dtype).to(where.device)
    ids = torch.tensor([9, 10, 14, 1 << 30, 0], device=where.device)
    result = embed(ids, table, 10).cpu()
    assert torch.equal(result[1], table[0].cpu()) and not result[[0, 2, 3, 4]].any()
