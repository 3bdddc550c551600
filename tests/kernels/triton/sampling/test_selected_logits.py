"""Logits of selected rows, of a rank's share of the vocabulary."""

import pytest
import torch

from kernels.triton.sampling.selected_logits import choose_sizes, selected_logits, selected_logits_reference
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.conftest import Where


@pytest.mark.parametrize(
    ("tokens", "rows", "held", "depth", "width"),
    [
        (5, [4, 0, 4], 33, 64, None),  # rows in any order, twice; a share smaller than a program's
        (3, [1, -1, 2, -1], 200, 48, 256),  # padding rows, and a share padded to the others' width
        (40, list(range(39, 0, -2)), 130, 200, 131),  # two programs of rows; a depth that ends within a step
        (1, [], 20, 16, None),
    ],
)
def test_logits(where: Where, tokens: int, rows: list[int], held: int, depth: int, width: int | None):
    hidden = random(tokens, depth, dtype=where.dtype)
    fused = torch.full((tokens, depth + 8), torch.nan, dtype=where.dtype)
    fused[:, 8:] = hidden
    table, ids = random(held, depth, dtype=where.dtype, seed=1), torch.tensor(rows, dtype=torch.int64)
    view = fused.to(where.device)[:, 8:]
    result = selected_logits(view, ids.to(where.device), table.to(where.device), width).cpu()
    assert result.shape == (len(rows), width or held) and result.dtype == torch.float32
    assert bool((result[:, held:] == -torch.inf).all())
    if rows:
        exact = selected_logits_reference(hidden.double(), ids, table.double())
        # Of float32 sums, whatever the dtype; the matrix units cut off what a sum does not need.
        assert_close(result[:, :held], exact, 2e-5 if where.device.type == "cpu" else 2e-4, 2e-6)


def test_logits_are_those_of_the_row_alone(where: Where):
    """As long as the sizes are the same: company and order change nothing."""
    hidden = random(9, 32, dtype=where.dtype).to(where.device)
    table = random(70, 32, dtype=where.dtype, seed=1).to(where.device)
    rows = torch.tensor([8, -1, 3, 0, 5], device=where.device)
    together = selected_logits(hidden, rows, table)
    for i in (0, 2, 4):
        assert torch.equal(selected_logits(hidden, rows[i : i + 1], table)[0], together[i])


def test_sizes():
    """As few rows as there are, within what the matrix units take and registers hold."""
    assert [choose_sizes(rows, 320, torch.bfloat16).rows for rows in (1, 17, 64, 300)] == [16, 32, 64, 128]
    assert choose_sizes(300, 320, torch.float32).rows == 32
    assert choose_sizes(300, 321, torch.bfloat16).rows == 64
