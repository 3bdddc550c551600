"""Products with floats of 4 bits: their values, the formula, company, and the same function in Python."""

import pytest
import torch

from kernels.cpu.matmul.groups.weight import (
    GroupedWeight,
    GroupedWords,
)
from kernels.cpu.matmul.records import E2M1_MIDDLE
from kernels.cpu.runtime.thread_pool import TEAM
from tests.kernels.references.groups import grouped_linear_reference
from tests.kernels.tolerances import assert_close, random

pytestmark = pytest.mark.cpu_kernels

BF16 = torch.bfloat16
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
SHAPES = [(64, 48), (96, 53), (576, 100)]
"""(K, N), groups of 32."""


def weight_of(
    in_features: int, out_features: int, bias: torch.Tensor | None
) -> tuple[GroupedWeight, torch.Tensor]:
    """Any codes and exponents, and the values that they stand for, [N, K]."""
    generator = torch.Generator().manual_seed(in_features)
    shape = out_features, in_features // 32
    codes = torch.randint(16, (*shape, 32), generator=generator, dtype=torch.uint8)
    scales = 2.0 ** torch.randint(-8, -4, shape, generator=generator)
    words = GroupedWords.empty((out_features, in_features), 32, shape[1], e2m1=True)
    words.put(torch.arange(out_features), codes, scales / 2, torch.full(shape, E2M1_MIDDLE))
    return words.pack(bias), (VALUES[codes.long()] * scales[:, :, None]).flatten(1)


@pytest.mark.parametrize("tokens", [1, 2, 4, 7, 9, 35])
@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_the_formula(in_features: int, out_features: int, tokens: int) -> None:
    """With the values of the format's description; a row has the same bits alone."""
    x, bias = random(tokens, in_features, dtype=BF16), random(out_features, dtype=BF16, seed=2)
    packed, values = weight_of(in_features, out_features, bias)
    assert torch.equal(packed.values(), values)
    result = packed.multiply(x, wide=True)
    assert_close(result, grouped_linear_reference(x, packed, bias), 4e-6, 2e-6)
    assert torch.equal(packed.multiply(x[-1:], wide=True), result[-1:])


@pytest.mark.parametrize("rows", [1, 9])
def test_python_gives_the_same(rows: int) -> None:
    from kernels.cpu.matmul.groups.vectors import BASE_BITS, OFFSET

    packed, _ = weight_of(64, 50, random(50, dtype=BF16))
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-127, 128, (rows, 64), generator=generator).to(torch.int8)
    sums = BASE_BITS - OFFSET * x.view(rows, 2, 32).sum(-1, dtype=torch.int32)
    scales = random(rows, 2, dtype=torch.float32).view(torch.int32)
    terms = torch.stack([scales, sums], -1).contiguous()
    both = torch.zeros(2, rows, 50)
    records = [packed.record(x, out, terms) for out in both]
    TEAM.run_one(packed.product, rows, records[0], 0)
    records[1].rows = rows
    packed.product.reference(records[1], 0, 4, 0)
    assert torch.equal(both[0], both[1]) and both.all()
