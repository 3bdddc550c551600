"""Products of many rows where registers are few: Python runs them here, with the bits of any other product.
tests/kernels/cpu/isa/test_every_set.py runs what is compiled of them."""

import numpy as np
import pytest
import torch

from kernels.cpu.runtime.work_split import ROWS
from tests.kernels.products import inputs

pytestmark = pytest.mark.cpu_kernels

COLUMNS = 20  # two strips
CHUNK = 6
"""Vectors of parts of weights, instead of AT_ONCE."""


@pytest.mark.parametrize("rows", [26, 27, 30, 31])
def test_the_bits_of_any_product(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several pieces of K, with tiles of 6 rows and of 5, from a later strip on."""
    from kernels.cpu.matmul import many_rows
    from kernels.cpu.matmul.gemm_float32 import linear_float32
    from kernels.cpu.matmul.packed import pack_weight
    from kernels.cpu.matmul.words import FLOATS

    monkeypatch.setattr(many_rows, "AT_ONCE", CHUNK)
    x, weight, bias = inputs(rows, 16, COLUMNS, torch.float32)
    packed, out = pack_weight(weight, bias), torch.zeros(rows, COLUMNS)
    assert packed.product is linear_float32
    scratch = np.zeros(64 * (CHUNK + ROWS), np.uint8)
    addresses = np.array([0, scratch.ctypes.data])
    record = packed.record(x, out)
    record.rows, record.scratch = rows, addresses.ctypes.data
    for strip in (0, 1):
        done = many_rows.multiply_many(FLOATS, record, record.x, 4 * 16, 0, rows, strip, strip + 1, 1)
        assert done == strip + 1
    assert torch.equal(out, packed.multiply(x)) and out.all()


def test_few_rows_are_left_to_others() -> None:
    from kernels.cpu.matmul.many_rows import MANY, multiply_many
    from kernels.cpu.matmul.records import LinearRecord
    from kernels.cpu.matmul.words import FLOATS

    assert multiply_many(FLOATS, LinearRecord(), 0, 0, 0, MANY - 1, 2, 5, 0) == 2
