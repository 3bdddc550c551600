"""Rounds weights to 4 bits with two levels of scales: w[n, k] ~ s[n] * m * (p - z), m, p and z of 0 .. 15.

A row is rounded in units of its largest value / LARGEST, in which the scales m of its parts are 15 at most
and m * (p - z) has 8 bits. A part of PART inputs tries eight scales, from two above the least that holds its
whole range down, and for each the two zero points beside the middle of the range. The pair whose squared
error is least is taken; all others together would gain a thousandth. At the end s is that whose squared error
over the whole row is least: with d = m * (p - z), s = sum w d / sum d d.

The error is 2 to 6 % more than with a float for each part, of normal values and of a trained model's
(tests/kernels/cpu/matmul/groups): a scale near the best one is nearly as good.
"""

from typing import Any

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import float32
from kernels.cpu.compiler.vectors import f32x16, i32x16
from kernels.cpu.isa.lanes import (
    as_f32,
    bits_of,
    constant_f32,
    constant_i32,
    larger,
    largest_lane,
    nearest,
    smaller,
    sum_of_lanes,
    truncated,
)
from kernels.cpu.isa.simd import fma, rint, select, sum_in_order, to_f32
from kernels.cpu.isa.vectors import LANES, read_u16, write_u32
from kernels.cpu.matmul.groups.vectors import LINE, PART_WORDS, values_at
from kernels.cpu.matmul.records import PART, RoundLevelsRecord
from kernels.cpu.runtime.work_split import COLUMNS, VECTORS

LEAST = 1e-30
"""A part of nothing larger is a part of zeros."""
LARGEST = 124.0
"""The largest value of a row: near 15 * 8, so that its part may have a zero point in the middle."""
MOST = 15.0
"""The largest p, z and m."""
BYTE = 127.0
"""The largest m * (p - z)."""
ABOVE = 2
"""By so much the largest scale that is tried is above that which holds the range."""
_below = constant_f32([lane // 2 - ABOVE for lane in range(LANES)])
_beside = constant_f32([lane % 2 for lane in range(LANES)])
_numbers = constant_f32(range(LANES))
"""The lanes are pairs of a scale and a zero point."""
_places = constant_i32([8 * (k % 4) + k % 8 // 4 * 4 for k in range(LANES)])
_first_word = constant_i32([-1] * 8 + [0] * 8)
"""Of 16 values: their bits in two words, and which of them are in the first one."""


def extremes(x: int, left: int, size: int) -> tuple[float, float]:
    """The largest value of a group and the largest of those below 0, without its sign; 0: there is none."""
    most, least = f32x16(0.0), f32x16(0.0)
    for k in range(0, size, LANES):
        values = values_at(x + 2 * k, left - k)
        most, least = larger(values, most), larger(values * -1.0, least)
    return largest_lane(most), largest_lane(least)


def value_at(address: int) -> f32x16:
    """A bfloat16 in all lanes, as float32."""
    return as_f32(i32x16(read_u16(address) << 16))


def write_words(integers: i32x16, to: int) -> None:
    """Two words of a column, of 16 integers of 0 .. 15. to: the address of the first one."""
    placed = integers << _places()
    write_u32(to, sum_of_lanes(placed & _first_word()))
    write_u32(to + LINE, sum_of_lanes(placed & ~_first_word()))


def _limited(values: f32x16, scales: f32x16, zeros: f32x16) -> f32x16:
    """The p - z nearest to values / scales. zeros: z."""
    most = to_f32(truncated(f32x16(BYTE) / scales))
    nearest_ones = rint(values / scales)
    return larger(smaller(nearest_ones, smaller(f32x16(MOST) - zeros, most)), larger(-zeros, -most))


def _best(x: int, left: int, unit: float, most: float, least: float) -> tuple[float, float]:
    """The scale and the zero point of a part. x: address of its values, of which so many are left; unit: what
    makes units of them; most, least: extremes()."""
    most, least = most * unit, least * unit
    whole = rint(f32x16((most + least) / float32(MOST)) + 0.499)
    scales = smaller(larger(whole - _below(), f32x16(1.0)), f32x16(MOST))
    middle = f32x16(float32(0.5) * (least - most)) / scales + 7.0
    zeros = smaller(larger(rint(middle) + _beside(), f32x16(0.0)), f32x16(MOST))
    errors = f32x16(0.0)
    for k in range(min(PART, left)):
        value = value_at(x + 2 * k) * unit
        error = value - _limited(value, scales, zeros) * scales
        errors = fma(error, error, errors)
    least_error = f32x16(0.0 - largest_lane(-errors))
    first = largest_lane(select(errors <= least_error, -_numbers(), f32x16(-99.0)))
    here = _numbers() == f32x16(0.0 - first)
    nowhere = f32x16(-1.0)
    return largest_lane(select(here, scales, nowhere)), largest_lane(select(here, zeros, nowhere))


def _write_part(x: int, left: int, unit: float, words: int, sums: list[Any]) -> int:
    """Writes the words of a part, and adds to the two sums those of w * d and d * d, d = m * (p - z). words:
    the address of the first one. Returns m and z as a byte."""
    most, least = extremes(x, left, PART)
    scale, zero = 1.0, 8.0
    if most + least > LEAST:
        scale, zero = _best(x, left, unit, most, least)
    scales, zeros = f32x16(scale), f32x16(zero)
    for k in range(0, PART, LANES):
        values = values_at(x + 2 * k, left - k)
        integers = _limited(values * unit, scales, zeros)
        write_words(nearest(integers + zeros), words + LINE * (k // 8))
        levels = integers * scales
        sums[0], sums[1] = fma(values, levels, sums[0]), fma(levels, levels, sums[1])
    return sum_of_lanes(nearest(zeros * 16.0 + scales)) // LANES


def _round_row(x: int, width: int, words: int, groups: int, size: int) -> float:
    """Writes the words of a row, and returns its scale."""
    most, least = extremes(x, width, width)
    largest = max(most, least)
    unit = float32(LARGEST) / max(largest, float32(LEAST))
    sums: list[Any] = [f32x16(0.0), f32x16(0.0)]
    for group in range(groups):
        at, bytes_of_parts = group * size, 0
        for part in range(size // PART):
            begin = at + PART * part
            to = words + LINE * PART_WORDS * part
            byte = _write_part(x + 2 * begin, width - begin, unit, to, sums)
            bytes_of_parts = bytes_of_parts | byte << 8 * part
        write_u32(words + LINE * (size // 8), bytes_of_parts)
        words += LINE * (size // 8 + 1)
    return sum_in_order(sums[0]) / max(sum_in_order(sums[1]), float32(LEAST))


@operation
def round_levels(record: RoundLevelsRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1 of the weight, which are columns of its blocks."""
    width, groups, size = record.width >> record.depth, record.groups >> record.depth, record.group_size
    leaves, leaf_size = 1 << record.depth, groups * LINE * (size // 8 + 1)
    strips = (record.rows + COLUMNS - 1) // COLUMNS * VECTORS
    for row in range(first, first + count):
        for leaf in range(leaves):
            part = leaves * row + leaf
            words = record.words + (leaves * (row // COLUMNS) + leaf) * leaf_size + 4 * (row % COLUMNS)
            scale = _round_row(record.weight + 2 * width * part, width, words, groups, size)
            params = record.params + (strips * leaf + row // LANES) * 128
            write_u32(params + 64 + 4 * (row % LANES), bits_of(float32(scale)))
