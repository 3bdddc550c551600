"""Operations on 16 values that only weights and inputs in groups need."""

from kernels.cpu.compiler.language import Static
from kernels.cpu.compiler.vectors import f32x16, i32x16
from kernels.cpu.isa.lanes import byte_table
from kernels.cpu.isa.simd import load_first_bf16
from kernels.cpu.isa.vectors import LANES
from kernels.cpu.matmul.groups.e2m1 import INTEGERS
from kernels.cpu.matmul.groups.records import LARGEST_ZERO

LOWER = 0x0F0F0F0F
"""Of a word, the lower 4 bits of each byte."""
BASE, BASE_BITS = 1.5 * 2**23, 0x4B400000
"""Where sums of integers begin, as a float32 (kernels.cpu.matmul.groups.product)."""
OFFSET_SHIFT = 6
OFFSET = 1 << OFFSET_SHIFT
"""What is added to p - z, so that a byte of it has no sign (kernels.cpu.matmul.groups.many_rows)."""
assert OFFSET == LARGEST_ZERO

integers_of_e2m1 = byte_table(INTEGERS)
"""The integer of each byte, a code of 0 .. 15 (kernels.cpu.matmul.groups.e2m1)."""


def integers_in(e2m1: Static[bool], words: i32x16, part: Static[int]) -> i32x16:
    """Four of the eight integers of each word, a byte each. e2m1: the words hold codes of floats."""
    if e2m1:
        return integers_of_e2m1(words >> (4 * part) & LOWER)
    return words >> (4 * part) & LOWER


def values_at(address: int, left: int) -> f32x16:
    """16 bfloat16 of a row of which so many are left, as float32; behind its end are zeros."""
    return load_first_bf16(address, max(0, min(left, LANES)))
