"""Packed weights of odd sizes: products and rows, compiled, have the bits that Python gives with the same
functions. (The other forms' are compared beside their tests; test_references.py runs on emulated processors.)
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kernels.cpu.matmul.packed import PackedWeight, pack_weight
from tests.kernels.cpu.python_team import PythonTeam
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels

BF16, F32 = torch.bfloat16, torch.float32
N, K = 52, 7
"""Two blocks of columns, of which the last one is cut."""
WEIGHTS: dict[str, Callable[[], PackedWeight]] = {
    "bfloat16": lambda: pack_weight(random(N, K, dtype=BF16), random(N, dtype=BF16, seed=1)),
    "bfloat16, one input": lambda: pack_weight(random(N, 1, dtype=BF16), None),
    "float32": lambda: pack_weight(random(N, K, dtype=F32), random(N, dtype=F32, seed=1)),
    "float32, one input": lambda: pack_weight(random(N, 1, dtype=F32), None),
}


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("name", WEIGHTS)
def test_products(name: str, rows: int):
    """Of few rows and of many, also without the last rounding."""
    weight = WEIGHTS[name]()
    slow = replace(weight, team=PythonTeam())
    x = random(rows, weight.in_features, dtype=weight.dtype, seed=2)
    for wide in (False, True):
        found = weight.multiply(x, wide)
        assert torch.equal(found, slow.multiply(x, wide)) and found.all()


@pytest.mark.parametrize("name", WEIGHTS)
def test_rows_of_weights(name: str):
    """The first, the last, and one twice."""
    weight, indexes = WEIGHTS[name](), torch.tensor([N - 1, 0, 48, 0])
    found = weight.rows(indexes)
    assert torch.equal(found, replace(weight, team=PythonTeam()).rows(indexes)) and found.all()
    assert torch.equal(found, random(N, weight.in_features, dtype=weight.dtype)[indexes])
