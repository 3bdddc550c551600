"""Products of every form of weights at the ends of strips and blocks: 16 and 48 columns, with any threads.
Against float64, and no value is written beside the result."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kernels.cpu.matmul.compact.weight import compact_weight
from kernels.cpu.matmul.groups.weight import grouped_linear_reference, round_to_two_levels
from kernels.cpu.matmul.int8 import quantize_weight
from kernels.cpu.matmul.packed import narrow_weight, pack_weight
from tests.kernels.cpu.matmul.groups.one_level import one_level
from tests.kernels.references.matmul import quantized_linear_reference
from tests.kernels.tolerances import assert_close, random

pytestmark = pytest.mark.cpu_kernels

BF16, F32 = torch.bfloat16, torch.float32
ENDS = [1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97, 143, 144, 145]
ROWS = [1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 26, 31]
INPUTS = 32
BESIDE = 7.0


def floats(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, made: Any) -> torch.Tensor:
    return x.double() @ weight.double().T + bias.double()


@dataclass(frozen=True)
class Form:
    """How a weight is held, and what its product is in float64."""

    pack: Callable[[torch.Tensor, torch.Tensor], Any]
    dtype: torch.dtype = BF16
    exact: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Any], torch.Tensor] = floats


FORMS = {
    "bfloat16": Form(pack_weight),
    "12 bits": Form(compact_weight),
    "float32": Form(pack_weight, F32),
    "halves": Form(lambda weight, bias: narrow_weight(weight.half().float(), bias), F32),
    "8 bits": Form(
        quantize_weight, exact=lambda x, weight, bias, _: quantized_linear_reference(x, weight, bias)
    ),
    "4 bits": Form(
        lambda weight, bias: one_level(weight, bias, 32),
        exact=lambda x, _, bias, made: grouped_linear_reference(x, made, bias),
    ),
    "4 bits, two levels": Form(
        round_to_two_levels, exact=lambda x, _, bias, made: grouped_linear_reference(x, made, bias)
    ),
}


def given(form: Form, columns: int) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Weight, bias, and the packed weight."""
    weight = random(columns, INPUTS, dtype=form.dtype, seed=columns, scale=INPUTS**-0.5)
    weight = weight.half().float() if form is FORMS["halves"] else weight
    bias = random(columns, dtype=form.dtype, seed=2)
    return weight, bias, form.pack(weight.clone(), bias)


@pytest.mark.parametrize("columns", ENDS)
@pytest.mark.parametrize("name", FORMS)
def test_the_last_columns(name: str, columns: int):
    """Of few rows and of many: each kind of tile ends where its columns do."""
    form = FORMS[name]
    weight, bias, made = given(form, columns)
    x = random(max(ROWS), INPUTS, dtype=form.dtype)
    exact = form.exact(x, weight, bias, made)
    together = made.multiply(x, True)
    assert_close(together, exact, 5e-6, 5e-6)
    for rows in ROWS:
        assert torch.equal(made.multiply(x[:rows], True), together[:rows])


@pytest.mark.parametrize("columns", [1, 16, 49, 97, 145])
@pytest.mark.parametrize("name", FORMS)
def test_threads_share_columns(name: str, columns: int, threads: int):
    form = FORMS[name]
    *_, made = given(form, columns)
    x = random(40, INPUTS, dtype=form.dtype)
    expected = torch.cat([made.multiply(row[None], True) for row in x])
    for rows in (1, 4, 40):
        assert torch.equal(made.multiply(x[:rows], True), expected[:rows])


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("columns", [1, 15, 17, 33, 50, 97])
@pytest.mark.parametrize("name", ["bfloat16", "12 bits", "float32", "halves"])
def test_nothing_beside_the_result_is_written(name: str, columns: int, wide: bool):
    """Before it and behind it, of one row and of several."""
    form = FORMS[name]
    *_, made = given(form, columns)
    dtype = F32 if wide else form.dtype
    for rows in (1, 3, 6, 9, 18):
        x, memory = (
            random(rows, INPUTS, dtype=form.dtype),
            torch.full((rows + 2, columns), BESIDE, dtype=dtype),
        )
        made.team.run_one(made.product, rows, made.record(x, memory[1:]), 0)
        assert torch.equal(memory[1:-1], made.multiply(x, wide))
        assert (memory[[0, -1]] == BESIDE).all()


@pytest.mark.parametrize("name", ["bfloat16", "12 bits", "float32", "halves", "8 bits"])
def test_rows_of_a_weight_that_are_looked_up(name: str):
    """At both ends of each block, any number of them, and nothing beside them."""
    form = FORMS[name]
    weight, _, made = given(form, 145)
    every = made.rows(torch.arange(145))
    if name != "8 bits":
        assert torch.equal(every, weight)
    for indexes in ([0], [47, 48, 95, 96, 143, 144], [144] * 20, []):
        picked = torch.tensor(indexes, dtype=torch.int64)
        memory = torch.full((len(picked) + 2, INPUTS), BESIDE, dtype=form.dtype)
        record = made.rows_record(picked.data_ptr(), memory[1:].data_ptr())
        made.team.run_one(made.gather, len(picked), record, 1)
        assert torch.equal(memory[1:-1], every[picked]) and (memory[[0, -1]] == BESIDE).all()


@pytest.mark.parametrize("name", FORMS)
def test_no_rows(name: str):
    form = FORMS[name]
    *_, made = given(form, 50)
    assert made.multiply(random(0, INPUTS, dtype=form.dtype), True).shape == (0, 50)


@pytest.mark.parametrize("name", ["bfloat16", "12 bits", "float32", "halves"])
def test_a_broken_row_is_broken_alone(name: str):
    """NaN and infinity reach all columns of their row and no other row."""
    form = FORMS[name]
    weight, _, made = given(form, 50)
    x = random(18, INPUTS, dtype=form.dtype)
    expected = made.multiply(x, True)
    x[4, 5], x[11, 31] = torch.nan, torch.inf
    found = made.multiply(x, True)
    assert found[4].isnan().all() and (~found[11].isfinite())[weight[:, 31] != 0].all()
    others = [row for row in range(18) if row not in (4, 11)]
    assert torch.equal(found[others], expected[others])
