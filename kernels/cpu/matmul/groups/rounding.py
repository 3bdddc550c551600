"""Rounds weights to 4 bits in groups: w[n, k] ~ s * (p - z), p and z of 0 .. 15.

The scale from the smallest to the largest value of a group makes errors of all values small where one or two
would do better to be cut. So each group tries ranges from whole down to SHARES of it, with the zero point
where 0 is, and, as q4_0 does, ranges from the value that is largest by amount, with a zero point of 8. For
the integers of a range the best scale is known: with d = p - z

    s = sum w d / sum d d          the squared error is then  sum w w - (sum w d) ** 2 / sum d d

The range whose error is least is taken. The error is 8 to 25 % less than from whole ranges
(tests/kernels/cpu/matmul/groups).
"""

from kernels.cpu.compiler.cache import operation
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
)
from kernels.cpu.isa.simd import fma, select, to_f32
from kernels.cpu.isa.vectors import LANES, read_u16, write_u32
from kernels.cpu.matmul.groups.records import RoundWeightRecord
from kernels.cpu.matmul.groups.vectors import LINE, values_at
from kernels.cpu.runtime.work_split import COLUMNS

LEAST = 1e-30
"""A group of nothing larger is a group of zeros."""
MOST = 15.0
"""The largest integer."""
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65)
_shares = constant_f32(2 * SHARES)
_kinds = constant_f32([0.0] * len(SHARES) + [1.0] * len(SHARES))
"""The lanes are ranges: 0: from the smallest to the largest value; 1: from the largest by amount."""
_numbers = constant_f32(range(LANES))
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


def _limited(integers: f32x16, zeros: f32x16) -> f32x16:
    """p - z of integers near it."""
    return smaller(larger(integers, zeros * -1.0), f32x16(MOST) - zeros)


def _best(x: int, left: int, size: int, most: float, least: float) -> tuple[int, float]:
    """Bits of the scale, and the zero point, of the best range of a group. most, least: see extremes()."""
    span, extreme = f32x16(most) + f32x16(least), f32x16(most)
    if least > most:
        extreme = f32x16(least) * -1.0
    whole = _kinds() < f32x16(0.5)
    zeros = select(whole, to_f32(nearest(f32x16(least) / span * MOST)), f32x16(8.0))
    factors = select(whole, f32x16(MOST) / span, f32x16(-8.0) / extreme) / _shares()
    products, squares = f32x16(0.0), f32x16(0.0)
    for k in range(min(size, left)):
        value = value_at(x + 2 * k)
        integers = _limited(to_f32(nearest(value * factors)), zeros)
        products, squares = fma(value, integers, products), fma(integers, integers, squares)
    scales = products / larger(squares, f32x16(0.5))
    gains = scales * products
    first = largest_lane(select(gains >= f32x16(largest_lane(gains)), _numbers() * -1.0, f32x16(-99.0)))
    here = _numbers() >= f32x16(first) * -1.0
    here = here & (_numbers() <= f32x16(first) * -1.0)
    nowhere = f32x16(-3e38)
    scale = largest_lane(select(here, scales, nowhere))
    return (bits_of(scale) + 128) & -256, largest_lane(select(here, zeros, nowhere))


def write_words(integers: i32x16, to: int) -> None:
    """Two words of a column, of 16 integers of 0 .. 15. to: the address of the first one."""
    placed = integers << _places()
    write_u32(to, sum_of_lanes(placed & _first_word()))
    write_u32(to + LINE, sum_of_lanes(placed & ~_first_word()))


def _write_group(x: int, left: int, size: int, words: int) -> None:
    """One group of a row. words: the address of its first word, whose next one is a line of its block
    further; behind the words is the scale with the zero point."""
    most, least = extremes(x, left, size)
    bits, zero, factor = 0, 0.0, f32x16(0.0)
    if most + least > LEAST:
        bits, zero = _best(x, left, size, most, least)
        factor = f32x16(1.0) / as_f32(i32x16(bits))
    zeros = f32x16(zero)
    for k in range(0, size, LANES):
        values = values_at(x + 2 * k, left - k)
        integers = _limited(to_f32(nearest(values * factor)), zeros) + zeros
        write_words(nearest(integers), words + LINE * (k // 8))
    write_u32(words + LINE * (size // 8), bits | sum_of_lanes(nearest(zeros) & 255) // LANES)


@operation
def round_weight(record: RoundWeightRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1 of the weight, which are columns of its blocks."""
    width, groups, size = record.width, record.groups, record.group_size
    group_bytes = LINE * (size // 8 + 1)
    for row in range(first, first + count):
        x = record.weight + 2 * width * row
        to = record.words + row // COLUMNS * groups * group_bytes + 4 * (row % COLUMNS)
        for group in range(groups):
            at = group * size
            _write_group(x + 2 * at, width - at, size, to + group * group_bytes)
