"""Products of a few rows where registers are few: Python runs them here, with the bits of any other product.
tests/kernels/cpu/isa/test_every_set.py runs what is compiled of them."""

import numpy as np
import pytest
import torch

from kernels.cpu.runtime.work_split import ROWS
from tests.kernels.products import inputs

pytestmark = pytest.mark.cpu_kernels

WORDS = 16
COLUMNS = 68
"""A block, and two strips of which the last one is cut."""


@pytest.mark.parametrize("rows", [3, 4, 5, 6, 7, 13, 25])
def test_the_bits_of_any_product(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of every size, of half a block and of strips, in several pieces of K; a block whose end is a
    strip's, and strips by themselves."""
    from kernels.cpu.matmul import few_rows
    from kernels.cpu.matmul.gemm_float32 import linear_float32
    from kernels.cpu.matmul.many_rows import AT_ONCE
    from kernels.cpu.matmul.packed import pack_weight
    from kernels.cpu.matmul.words import FLOATS

    monkeypatch.setattr(few_rows, "PIECE", 6 * 4 * 48)
    x, weight, bias = inputs(rows, WORDS, COLUMNS, torch.float32)
    packed, out = pack_weight(weight, bias), torch.zeros(rows, COLUMNS)
    assert packed.product is linear_float32
    scratch = np.zeros(64 * (AT_ONCE + ROWS), np.uint8)
    addresses = np.array([0, scratch.ctypes.data])
    record = packed.record(x, out)
    record.rows, record.scratch = rows, addresses.ctypes.data
    for strip, end in (0, 3), (3, 5):
        assert few_rows.multiply_few(FLOATS, record, record.x, 4 * WORDS, 0, rows, strip, end, 1) == end
    assert torch.equal(out, packed.multiply(x)) and out.all()
    out.zero_()
    for strip in range(5):
        few_rows.multiply_few(FLOATS, record, record.x, 4 * WORDS, 0, rows, strip, strip + 1, 1)
    assert torch.equal(out, packed.multiply(x))


@pytest.mark.parametrize("rows", [1, 2, 26, 256])
def test_other_rows_are_left_to_others(rows: int) -> None:
    from kernels.cpu.matmul.few_rows import multiply_few
    from kernels.cpu.matmul.records import LinearRecord
    from kernels.cpu.matmul.words import FLOATS

    assert multiply_few(FLOATS, LinearRecord(), 0, 0, 0, rows, 2, 5, 0) == 2


def test_what_is_prefetched_is_what_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line from some words behind the first ones on, and behind the block's end those of the next
    block, whichever tiles there are."""
    from kernels.cpu.matmul import few_rows
    from kernels.cpu.matmul.packed import pack_weight
    from kernels.cpu.matmul.words import FLOATS

    lines = list[int]()
    monkeypatch.setattr(few_rows, "prefetch", lines.append)
    monkeypatch.setattr(few_rows, "PIECE", 6 * 4 * 48)
    monkeypatch.setattr(few_rows, "NEAR", 6)
    scratch = np.zeros(64 * 1024, np.uint8)
    for rows in (4, 5):
        x, weight, bias = inputs(rows, 12, 96, torch.float32)
        packed, out = pack_weight(weight, bias), torch.zeros(rows, 96)
        record, addresses = packed.record(x, out), np.array([0, scratch.ctypes.data])
        record.rows, record.scratch = rows, addresses.ctypes.data
        lines.clear()
        few_rows.multiply_few(FLOATS, record, record.x, 48, 0, rows, 0, 3, 1)
        begin, size = record.weight + 6 * 192, 12 * 192
        assert sorted({(line - begin) // 64 for line in lines}) == list(range(size // 64)), rows
