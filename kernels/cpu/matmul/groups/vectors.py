"""Operations on 16 values that only weights and inputs in groups need, and sums of products of the words of a
group, which few rows take apart while they multiply."""

from typing import Any

from kernels.cpu.compiler.language import Static, unroll
from kernels.cpu.compiler.vectors import f32x16, i32x16
from kernels.cpu.isa.lanes import byte_table
from kernels.cpu.isa.simd import add_two_nibbles, fma, load_f32, load_first_bf16, load_i32, prefetch
from kernels.cpu.isa.vectors import LANES, read_u32
from kernels.cpu.matmul.records import E2M1_INTEGERS, LARGEST_ZERO, PART
from kernels.cpu.runtime.work_split import COLUMNS

ONE_LEVEL, E2M1, TWO_LEVELS = range(3)
"""Kinds of weights (kernels.cpu.matmul.groups.weight): a float for each group as its scale, the same with
codes of floats in place of integers, and two levels of scales."""
LINE = 4 * COLUMNS
"""Bytes of a word of all columns of a block."""
LOWER = 0x0F0F0F0F
"""Of a word, the lower 4 bits of each byte."""
BASE, BASE_BITS = 1.5 * 2**23, 0x4B400000
"""Where sums of integers begin, as a float32 (kernels.cpu.matmul.groups.product)."""
OFFSET_SHIFT = 6
OFFSET = 1 << OFFSET_SHIFT
"""What is added to p - z, so that a byte of it has no sign (kernels.cpu.matmul.groups.many_rows)."""
assert OFFSET == LARGEST_ZERO
MIDDLE = 128
"""What is added to m * (p - z) of two levels of scales, likewise."""
PART_WORDS = PART // 8
AHEAD = 16 * LINE
"""Bytes between what one row multiplies with and what it prefetches."""

integers_of_e2m1 = byte_table(E2M1_INTEGERS)
"""The integer of each byte, a code of 0 .. 15 (kernels.cpu.matmul.records)."""


def integers_in(kind: Static[int], words: i32x16, part: Static[int]) -> i32x16:
    """Four of the eight integers of each word, a byte each."""
    if kind == E2M1:
        return integers_of_e2m1(words >> (4 * part) & LOWER)
    return words >> (4 * part) & LOWER


def values_at(address: int, left: int) -> f32x16:
    """16 bfloat16 of a row of which so many are left, as float32; behind its end are zeros."""
    return load_first_bf16(address, max(0, min(left, LANES)))


def bytes_of_terms(kind: Static[int], words: int) -> int:
    """What a row of x has for a group of so many words (kernels.cpu.matmul.groups.inputs)."""
    if kind == TWO_LEVELS:
        return 8 + words // PART_WORDS * 4
    return 8


def bytes_of_params(kind: Static[int]) -> int:
    """Those of 16 columns: biases; with two levels of scales, these follow."""
    if kind == TWO_LEVELS:
        return 128
    return 64


def params_of(kind: Static[int], params: int, strip: int) -> int:
    """The address of the params of 16 columns."""
    return params + bytes_of_params(kind) * strip


def scale_of(kind: Static[int], params: int) -> f32x16:
    """The scales of the second level of 16 columns. params: address of their biases."""
    if kind == TWO_LEVELS:
        return load_f32(params + 64)
    return f32x16(1.0)


def result_of(kind: Static[int], total: f32x16, scale: f32x16, bias: f32x16) -> f32x16:
    """Results of 16 columns."""
    if kind == TWO_LEVELS:
        return fma(total, scale, bias)
    return total + bias


def add_group(
    rows: Static[int],
    vectors: Static[int],
    kind: Static[int],
    totals: list[Any],
    xs: list[Any],
    x_offset: int,
    w: int,
    words: int,
) -> None:
    """Adds the products of so many words of a group. xs: addresses of rows; w: address of the words."""
    at, offset = w, x_offset
    for _ in range(words):
        for v in unroll(range(vectors)):
            word = load_i32(at + 64 * v)
            lower, upper = integers_in(kind, word, 0), integers_in(kind, word, 1)
            for m in unroll(range(rows)):
                first, second = i32x16(read_u32(xs[m] + offset)), i32x16(read_u32(xs[m] + offset + 4))
                total = totals[vectors * m + v]
                totals[vectors * m + v] = add_two_nibbles(total, lower, first, upper, second)
            prefetch(at + AHEAD + 64 * v)
        at += LINE
        offset += 8
