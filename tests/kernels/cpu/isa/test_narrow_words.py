"""Words of 8 and 16 bits: compiled code gives what Python gives, and torch."""

import numpy as np
import pytest
import torch

pytest.importorskip("llvmlite")
from kernels.cpu.compiler.cache import compiled  # noqa: E402
from kernels.cpu.isa.narrow_words import (  # noqa: E402
    load_e4m3_floats,
    load_e4m3_pairs,
    load_u16,
    store_i16,
)
from kernels.cpu.isa.simd import store_i32  # noqa: E402

pytestmark = pytest.mark.cpu_kernels


def widen(codes: int, pairs: int, floats: int) -> None:
    """All numbers of e4m3."""
    for first in range(0, 256, 32):
        store_i32(pairs + 2 * first, load_e4m3_pairs(codes + first))
    for first in range(0, 256, 16):
        store_i32(floats + 4 * first, load_e4m3_floats(codes + first))


def test_numbers_of_8_bits_become_pairs_and_floats():
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(torch.float8_e4m3fn)
    for function in (compiled(widen), widen):
        pairs, floats = torch.zeros(256, dtype=torch.bfloat16), torch.zeros(256)
        function(codes.data_ptr(), pairs.data_ptr(), floats.data_ptr())
        torch.testing.assert_close(pairs, expected.bfloat16(), rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(floats, expected.float(), rtol=0, atol=0, equal_nan=True)


def halve(x: int, wide: int, narrow: int) -> None:
    store_i32(wide, load_u16(x))
    store_i16(narrow, load_u16(x) + 0x7FFF0001)


def test_numbers_of_16_bits_have_no_sign():
    """And lose their upper halves where they are stored."""
    x = np.array([0, 1, 0x7FFF, 0x8000, *range(0xFFF4, 0x10000)], np.uint16)
    for function in (compiled(halve), halve):
        wide, narrow = np.zeros(16, np.int32), np.zeros(17, np.uint16)
        function(x.ctypes.data, wide.ctypes.data, narrow.ctypes.data)
        assert (wide == x).all() and (narrow[:16] == x + np.uint16(1)).all() and narrow[16] == 0
