"""Numbers of rows: those of Philox, whichever are asked for first, beside which rows, and how often."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kernels.ops.sampling.philox import philox4x32_reference, uniform53_reference
from worker.sampling.uniforms import BLOCK, Uniforms

SEEDS = [(0, 0), (7, 9), (2**32 - 1, 2**32 - 1), (7, 9)]
INDEXES = [0, 3, 2**31, 4]


def state() -> Any:
    """Four rows; the second and the last one have the same seed."""
    return SimpleNamespace(keys=np.array(SEEDS, np.int64), sequence_index=np.array(INDEXES, np.int64))


def number(row: int, position: int) -> float:
    return uniform53_reference(philox4x32_reference((INDEXES[row], position, 0, 0), SEEDS[row]))


@pytest.mark.parametrize("position", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 131_071])
def test_numbers_are_those_of_the_formula(position: int):
    uniforms = Uniforms(state())
    found = uniforms.draw([0, 1, 2, 3], [position] * 4)
    assert found.dtype == torch.float64
    assert found.tolist() == [number(row, position) for row in range(4)]
    assert len(set(found.tolist())) == 4, "sequences of one seed differ"


def test_rows_at_positions_of_their_own_in_any_order():
    """A row may go back, as behind drafts that were refused, and rows may be named twice."""
    uniforms, asked = Uniforms(state()), np.random.default_rng(0)
    for _ in range(30):
        rows = asked.integers(0, 4, 5).tolist()
        positions = [int(asked.integers(0, 2 * BLOCK)) if row else 5 for row in rows]
        if len({(row, position // BLOCK) for row, position in zip(rows, positions, strict=True)}) == len(
            set(rows)
        ):
            found = uniforms.draw(rows, positions).tolist()
            assert found == [number(*each) for each in zip(rows, positions, strict=True)]


def test_no_rows_have_no_numbers():
    found = Uniforms(state()).draw([], [])
    assert found.shape == (0,) and found.dtype == torch.float64


def test_a_row_that_begins_again_has_other_numbers():
    """Once its numbers are forgotten; those of other rows stay."""
    given = state()
    uniforms = Uniforms(given)
    uniforms.draw([1, 2], [4, 4])
    given.keys[1], given.sequence_index[1] = given.keys[0], given.sequence_index[0]
    uniforms.forget(1)
    uniforms.forget(0)  # one that has none
    assert uniforms.draw([1, 2], [4, 4]).tolist() == [number(0, 4), number(2, 4)]
