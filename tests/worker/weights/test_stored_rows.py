"""Which stored rows become which rows of a matrix: parts, orders, matrices that lie in a larger one, experts;
and weights whose rows do not become rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from worker.layers.base import Weight
from worker.weights.stored_forms import StoredRows, stored_rows

INPUTS = 6


def matrix(rows: int, inputs: int = INPUTS) -> torch.Tensor:
    return torch.arange(rows * inputs).float().view(rows, inputs)


def of(target: torch.Tensor, shape: tuple[int, ...], **fields: Any) -> StoredRows | None:
    return stored_rows(Weight("name", shape, target, **fields), INPUTS)


def filled(target: torch.Tensor, whole: torch.Tensor, shape: tuple[int, ...], **fields: Any) -> None:
    """Puts stored rows where they go, each with numbers of its own, and compares that with what the target
    of the weight holds when it is filled as loading does."""
    stored = torch.arange(torch.tensor(shape).prod()).view(shape) + 1000.0
    rows = stored if len(shape) == 2 else stored.transpose(1, 2).flatten(0, 1)
    found = of(target, shape, **fields)
    assert found is not None
    expected = whole.clone()
    for at, place in enumerate(found.places.tolist()):
        if place >= 0:
            expected[place] = rows[found.first + at]
    part = stored[fields.get("part") or ...]
    if order := fields.get("order"):
        part = part[list(order)]
    target.copy_(part.reshape(target.shape))
    assert torch.equal(whole, expected)


def test_a_whole_matrix():
    whole = matrix(4)
    found = of(whole, (4, INPUTS))
    assert found is not None and found.first == 0 and found.places.tolist() == [0, 1, 2, 3]
    filled(whole, whole, (4, INPUTS))


@pytest.mark.parametrize("part", [(slice(3, 7),), (slice(3, 7), slice(None)), (slice(3, 7), slice(0, 6))])
def test_some_rows_of_a_tensor(part: tuple[slice, ...]):
    """Those of a rank, which has all inputs of them."""
    filled(whole := matrix(4), whole, (9, INPUTS), part=part)


def test_a_part_of_a_matrix_of_several_tensors():
    """Its rows begin where the target does."""
    whole = matrix(9)
    found = of(whole[5:8], (3, INPUTS))
    assert found is not None and found.places.tolist() == [5, 6, 7]
    filled(whole[5:8], whole, (3, INPUTS))


@pytest.mark.parametrize("order", [(2, 0, 1, 3), (3, 1), (0,)])
def test_rows_in_another_order(order: tuple[int, ...]):
    """All of them, or some: the others go nowhere."""
    whole = matrix(7)
    found = of(whole[2 : 2 + len(order)], (4, INPUTS), order=order)
    assert found is not None
    places = {row: 2 + at for at, row in enumerate(order)}
    assert found.places.tolist() == [places.get(row, -1) for row in range(4)]
    filled(whole[2 : 2 + len(order)], whole, (4, INPUTS), order=order)


EXPERTS, OUTPUTS = 3, 4
SHAPE = EXPERTS, INPUTS, OUTPUTS


@pytest.mark.parametrize("expert", range(EXPERTS))
def test_an_expert_of_a_tensor_with_all(expert: int):
    """Stored with its outputs last; rows are counted over all experts."""
    whole = matrix(OUTPUTS)
    part = (slice(expert, expert + 1),)
    found = of(whole.t()[None], SHAPE, part=part)
    assert found is not None and found.first == expert * OUTPUTS and found.places.tolist() == [0, 1, 2, 3]
    filled(whole.t()[None], whole, SHAPE, part=part)


def test_some_outputs_of_an_expert():
    """As a rank has them."""
    whole = matrix(2)
    part = slice(1, 2), slice(None), slice(2, 4)
    found = of(whole.t()[None], SHAPE, part=part)
    assert found is not None and found.first == OUTPUTS + 2 and found.places.tolist() == [0, 1]
    filled(whole.t()[None], whole, SHAPE, part=part)


def test_outputs_that_go_to_two_halves_in_turns():
    """Gates and ups are stored one after the other, and held apart: the target's outputs have two
    dimensions."""
    whole = matrix(OUTPUTS)
    target = whole.view(2, OUTPUTS // 2, INPUTS).permute(2, 1, 0)[None]
    part = (slice(0, 1),)
    found = of(target, SHAPE, part=part)
    assert found is not None and found.places.tolist() == [0, 2, 1, 3]
    filled(target, whole, SHAPE, part=part)


NO_ROWS: dict[str, Callable[[], StoredRows | None]] = {
    "some inputs": lambda: of(matrix(4, 3), (4, INPUTS), part=(slice(None), slice(0, 3))),
    "stored with inputs first": lambda: of(matrix(INPUTS), (INPUTS, INPUTS), transposed=True),
    "columns of a matrix": lambda: of(matrix(4, 2 * INPUTS)[:, :INPUTS], (4, INPUTS)),
    "the transposed matrix": lambda: of(matrix(INPUTS).t(), (INPUTS, INPUTS)),
    "a vector": lambda: of(torch.zeros(4), (4,)),
    "four dimensions": lambda: of(torch.zeros(1, 1, 4, INPUTS), (1, 1, 4, INPUTS)),
    "two experts": lambda: of(torch.zeros(2, OUTPUTS, INPUTS).mT, SHAPE, part=(slice(0, 2),)),
    "an expert in another order": lambda: of(
        matrix(OUTPUTS).t()[None], SHAPE, part=(slice(0, 1),), order=(1, 0, 2, 3)
    ),
    "an expert's inputs side by side with another's": lambda: of(
        torch.zeros(1, INPUTS, OUTPUTS), SHAPE, part=(slice(0, 1),)
    ),
    "some inputs of an expert": lambda: of(
        matrix(OUTPUTS).t()[None], SHAPE, part=(slice(0, 1), slice(0, INPUTS - 1))
    ),
    "fewer places than outputs": lambda: of(matrix(3).t()[None], SHAPE, part=(slice(0, 1),)),
    "outputs that begin within a row": lambda: of(
        matrix(OUTPUTS + 1).flatten()[3:-3].view(OUTPUTS, INPUTS).t()[None], SHAPE, part=(slice(0, 1),)
    ),
}


@pytest.mark.parametrize("name", NO_ROWS)
def test_weights_whose_rows_do_not_become_rows(name: str):
    assert NO_ROWS[name]() is None
