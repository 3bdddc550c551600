"""Candidates, filters and numbers of rows with parameters of their own, against the operations row by row."""

import numpy as np
import pytest
import torch

from kernels.ops.sampling.choose import candidates_of, uniforms_of
from kernels.ops.sampling.columns import SamplingColumns
from kernels.ops.sampling.filters import min_p, top_p, typical_p
from tests.kernels.references.sampling import philox4x32_reference, uniform53_reference

V = 30


def columns_of(*parameters: dict[str, float]) -> SamplingColumns:
    """One row each."""
    columns = SamplingColumns(len(parameters))
    for row, values in enumerate(parameters):
        columns.set_row(row, **values)
    return columns


def logits(count: int) -> torch.Tensor:
    return torch.randn(count, V, generator=torch.Generator().manual_seed(3)) * 2


def test_columns_of_a_row_that_begins_again() -> None:
    columns = columns_of({}, {"temperature": 0.5, "top_k": 7, "min_p": 0.5, "seed": 2**64 - 2})
    assert columns.uses(1, "min_p") and columns.uses(1, "top_p", "top_k") and not columns.uses(1, "top_p")
    assert columns["seed"][1] == 2**64 - 2 and columns["top_k"].flags.c_contiguous
    columns.set_row(1, position=4)
    names = "temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "position"
    assert [columns[name][1] for name in names] == [1, 0, 1, 0, 1, 0, 4]
    columns.positions[1] += 1
    assert columns["position"].tolist() == [0, 5]


def test_candidates_of_the_whole_vocabulary() -> None:
    x = logits(2)
    found = candidates_of(x, [0, 1], columns_of({"temperature": 0.5}, {"temperature": 2.0}))
    assert found.ids is None
    expected = np.exp((x.double() - x.amax(-1, keepdim=True)).numpy() / np.array([[0.5], [2.0]]))
    np.testing.assert_allclose(found.weights.numpy(), expected, rtol=1e-12)


def test_candidates_are_as_many_as_the_largest_top_k() -> None:
    """Ascending ids; a smaller k leaves the others without weight."""
    found = candidates_of(logits(2), [0, 1], columns_of({"top_k": 2}, {"top_k": 5}))
    assert found.ids is not None and found.ids.shape == found.weights.shape == (2, 5)
    assert bool((found.ids[1, 1:] > found.ids[1, :-1]).all())
    assert (found.weights > 0).sum(-1).tolist() == [2, 5]


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [3], [1, 3], [0, 2]])
def test_each_filter_applies_to_its_own_rows(rows: list[int]) -> None:
    parameters: list[dict[str, float]] = [
        {"top_p": 0.5},
        {"min_p": 0.25},
        {"typical_p": 0.75, "top_p": 0.75},
        {},
    ]
    x = logits(4)[rows]
    weights = candidates_of(x, rows, columns_of({}, {}, {}, {})).weights
    found = candidates_of(x, rows, columns_of(*parameters))
    for at, row in enumerate(rows):
        one, score, values = weights[at : at + 1], x[at : at + 1], parameters[row]
        if "top_p" in values:
            one = top_p(score, one, torch.tensor([values["top_p"]], dtype=torch.float64))
        if "min_p" in values:
            one = min_p(one, torch.tensor([values["min_p"]], dtype=torch.float64))
        if "typical_p" in values:
            one = typical_p(one, torch.tensor([values["typical_p"]], dtype=torch.float64))
        assert torch.equal(found.weights[at], one[0])


SEEDS = [(0, 0), (7, 9), (2**32 - 1, 2**32 - 1), (7, 9)]
INDEXES = [0, 3, 2**31, 4]


@pytest.mark.parametrize("position", [0, 1, 63, 64, 131_071])
def test_numbers_are_those_of_the_formula(position: int) -> None:
    """In any order; the second and the last row have the same seed."""
    columns = SamplingColumns(4)
    for row, ((low, high), index) in enumerate(zip(SEEDS, INDEXES, strict=True)):
        columns.set_row(row, seed=low | high << 32, sequence_index=index, position=position + row)
    expected = [
        uniform53_reference(philox4x32_reference((index, position + row, 0, 0), seed))
        for row, (seed, index) in enumerate(zip(SEEDS, INDEXES, strict=True))
    ]
    found = uniforms_of([2, 0, 3, 1], columns)
    assert found.dtype == torch.float64 and found.tolist() == [expected[row] for row in (2, 0, 3, 1)]
    assert len(set(expected)) == 4, "sequences of one seed differ"
    assert uniforms_of([], columns).shape == (0,)
