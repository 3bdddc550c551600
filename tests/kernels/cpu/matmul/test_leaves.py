"""Products of several leaves, of every form of weights: a leaf is the product of its inputs alone, leaves are
added as a tree, and ranks that share them get the same bits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels.cpu.matmul.compact.weight import CompactWeight, compact_weight
from kernels.cpu.matmul.groups.weight import GroupedWords, round_to_two_levels
from kernels.cpu.matmul.int8 import quantize_weight
from kernels.cpu.matmul.packed import narrow_weight, pack_weight
from tests.kernels.references.matmul import tree_sum
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels

BF16, F32 = torch.bfloat16, torch.float32
GROUP = 32


def halves(weight: torch.Tensor, bias: torch.Tensor | None, leaves: int = 1) -> Any:
    return narrow_weight(weight.half().float(), bias, leaves=leaves)


def one_level(weight: torch.Tensor, bias: torch.Tensor | None, leaves: int = 1, e2m1: bool = False) -> Any:
    """Groups of GROUP inputs; what their codes and scales are is a function of the group alone."""
    rows, inputs = weight.shape
    groups = inputs // GROUP
    words = GroupedWords.empty((rows, inputs), GROUP, groups, e2m1=e2m1)
    codes = (weight.float() * 50).int().remainder(16).to(torch.uint8)
    largest = weight.float().unflatten(1, (groups, GROUP)).abs().amax(2) / 8
    scales = (largest.view(torch.int32) & -256).view(F32)
    zeros = None if e2m1 else codes.unflatten(1, (groups, GROUP))[:, :, 0].int()
    words.put(torch.arange(rows), codes, scales, zeros)
    return words.pack(bias, leaves=leaves)


def e2m1(weight: torch.Tensor, bias: torch.Tensor | None, leaves: int = 1) -> Any:
    return one_level(weight, bias, leaves, True)


FORMS: dict[str, Callable[..., Any]] = {
    "bfloat16": pack_weight,
    "12 bits": compact_weight,
    "float32": pack_weight,
    "halves": halves,
    "8 bits": quantize_weight,
    "4 bits": one_level,
    "floats of 4 bits": e2m1,
    "4 bits, two levels": round_to_two_levels,
}
SHAPES = [(50, 512, 2), (97, 1024, 4), (48, 768, 8), (1, 576, 2), (161, 1408, 4)]
"""(N, K, leaves): leaves of 96 to 352 inputs, columns cut everywhere."""
ROWS = [1, 2, 3, 5, 8, 9, 16, 17, 27, 40]


def given(name: str, shape: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weight, bias; some weights that 12 bits do not reach."""
    columns, inputs, _ = shape
    dtype = F32 if name in ("float32", "halves") else BF16
    weight = random(columns, inputs, dtype=dtype, seed=1, scale=inputs**-0.5)
    weight[random(columns, inputs, dtype=F32, seed=3) > 2.9] *= 2.0**-40
    if name == "halves":
        weight = weight.half().float()
    return random(max(ROWS), inputs, dtype=dtype), weight, random(columns, dtype=dtype, seed=2)


def expected(form: Callable[..., Any], x: torch.Tensor, weight: torch.Tensor, leaves: int) -> torch.Tensor:
    """The tree of the products of each leaf, without bias."""
    parts = zip(x.chunk(leaves, 1), weight.chunk(leaves, 1), strict=True)
    return tree_sum(torch.stack([form(of_w.contiguous(), None).multiply(of_x, True) for of_x, of_w in parts]))


def fits(name: str, shape: tuple[int, int, int]) -> bool:
    """With two levels of scales a leaf has whole groups of the largest size."""
    return name != "4 bits, two levels" or shape[1] // shape[2] % 128 == 0


@pytest.mark.parametrize(
    ("name", "shape"), [(name, shape) for name in FORMS for shape in SHAPES if fits(name, shape)]
)
def test_a_product_is_the_tree_of_its_leaves(name: str, shape: tuple[int, int, int]):
    """Of few rows and of many, with any neighbours, and rounded once."""
    form, (x, weight, bias) = FORMS[name], given(name, shape)
    total = expected(form, x, weight, shape[2]) + bias.float()
    packed = form(weight.clone(), bias, leaves=shape[2])
    assert packed.depth == shape[2].bit_length() - 1
    for rows in ROWS:
        assert torch.equal(packed.multiply(x[:rows], True), total[:rows])
    assert torch.equal(packed.multiply(x), total.to(x.dtype))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("name", FORMS)
def test_ranks_change_no_bit(name: str, ranks: int):
    """A rank packs its inputs, with its leaves and without the bias."""
    form, (x, weight, _) = FORMS[name], given(name, (70, 2048, 8))
    whole = form(weight.clone(), None, leaves=8).multiply(x, True)
    shares = zip(x.chunk(ranks, 1), weight.chunk(ranks, 1), strict=True)
    parts = [form(of_w.contiguous(), None, leaves=8 // ranks).multiply(of_x, True) for of_x, of_w in shares]
    assert torch.equal(tree_sum(torch.stack(parts)), whole)


@pytest.mark.parametrize("name", FORMS)
def test_threads_share_columns(name: str, threads: int):
    form, (x, weight, bias) = FORMS[name], given(name, (161, 512, 2))
    packed = form(weight, bias, leaves=2)
    every = torch.cat([packed.multiply(row[None], True) for row in x])
    for rows in (1, 4, 40):
        assert torch.equal(packed.multiply(x[:rows], True), every[:rows])


@pytest.mark.parametrize("name", FORMS)
def test_several_chunks_of_rows(name: str):
    """More rows than a thread multiplies before the next ones."""
    form, (x, weight, bias) = FORMS[name], given(name, (50, 512, 2))
    packed = form(weight, bias, leaves=2)
    found = packed.multiply(x.repeat(13, 1), True)
    assert torch.equal(found, packed.multiply(x, True).repeat(13, 1))


@pytest.mark.parametrize("rows", [1, 9, 29])
@pytest.mark.parametrize("name", FORMS)
def test_python_agrees(name: str, rows: int):
    """Compiled code gives what Python gives with the same functions."""
    form, (x, weight, bias) = FORMS[name], given(name, (33, 192 if fits(name, (33, 192, 2)) else 256, 2))
    packed = form(weight, bias, leaves=2)
    x, out = x[:rows].contiguous(), torch.zeros(rows, 33)
    expected = packed.multiply(x, True)
    inputs, terms = packed.prepare(
        x, lambda width, dtype: torch.empty((rows, width), dtype=dtype), run(packed, rows)
    )
    packed.team.run_one(packed.product, rows, record := packed.record(inputs, out, terms), 0)
    assert torch.equal(out, expected)
    out.zero_()
    record.rows = rows
    packed.product.reference(record, 0, 3, 0)
    assert torch.equal(out, expected)


def run(packed: Any, rows: int) -> Callable[..., None]:
    return lambda operation, record, grain: packed.team.run_one(operation, rows, record, grain)


@pytest.mark.compact_weights
def test_rows_of_a_compact_weight_of_several_leaves():
    _, weight, _ = given("12 bits", (97, 1024, 4))
    packed = compact_weight(weight.clone(), None, leaves=4)
    assert isinstance(packed, CompactWeight) and packed.starts.shape == (4, 9)
    assert torch.equal(packed.rows(torch.arange(97)), weight)


@pytest.mark.parametrize("name", ["8 bits", "4 bits, two levels"])
def test_values_stay_near(name: str):
    """Rounded leaf by leaf, a product is as near as in one."""
    form, (x, weight, bias) = FORMS[name], given(name, (97, 1024, 4))
    exact = x.double() @ weight.double().T + bias.double()
    lost = [
        (form(weight, bias, leaves=leaves).multiply(x, True) - exact).square().mean() for leaves in (1, 4)
    ]
    assert lost[1] < 1.1 * lost[0]
    if name != "8 bits":
        values = [form(weight, None, leaves=leaves).values().double() for leaves in (1, 4)]
        before, after = ((each - weight.double()).square().mean() for each in values)
        assert after < 1.1 * before


def test_leaves_that_do_not_fit_are_refused():
    weight = random(16, 96, dtype=BF16)
    for leaves in (2, 3):
        with pytest.raises(ValueError, match="96 inputs cannot be"):
            pack_weight(weight, None, leaves=leaves)
