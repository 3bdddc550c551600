"""Inputs of a product with weights in groups: 8 bits a value, and a scale per token and group of inputs.

    x[t, k] ~ u[t, g] * q[t, k]       g: the group of k; q integers of -127 .. 127, u = max_k |x[t, k]| / 127

A value that is much larger than the others, which trained models have in a few places, costs the others of
its group their precision, and no more.
"""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.vectors import f32x16, i32x16
from kernels.cpu.isa.simd import fma, sum_in_order
from kernels.cpu.isa.vectors import LANES, read_i64, read_u16, write_u16, write_u32
from kernels.cpu.matmul.groups.records import QuantizeGroupsRecord
from kernels.cpu.matmul.groups.vectors import (
    bits_of,
    larger,
    largest_lane,
    nearest,
    store_i8,
    sum_of_lanes,
    values_at,
)

LEAST = 1e-30
"""A group of nothing larger is a group of zeros."""


def _quantize(x: int, left: int, out: int, terms: int, size: int) -> None:
    """One group. left: values of x from there on; behind them are zeros. The scale of a group with a NaN or
    an infinite value is a NaN."""
    most, broken = f32x16(0.0), f32x16(0.0)
    for k in range(0, size, LANES):
        values = values_at(x + 2 * k, left - k)
        most = larger(larger(values, values * -1.0), most)
        broken = fma(values, f32x16(0.0), broken)
    largest = largest_lane(most)
    factor, total = f32x16(0.0), i32x16(0)
    if largest > LEAST:
        factor = f32x16(127.0) / f32x16(largest)
    for k in range(0, size, LANES):
        integers = nearest(values_at(x + 2 * k, left - k) * factor)
        store_i8(out + k, integers)
        total = total + integers
    unit = f32x16(largest) / f32x16(127.0) + f32x16(sum_in_order(broken))
    write_u32(terms, bits_of(largest_lane(unit)))
    write_u32(terms + 4, -sum_of_lanes(total))


@operation
def quantize_groups(record: QuantizeGroupsRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    size, width, groups, order = record.group_size, record.width, record.groups, record.order
    for row in range(first, first + count):
        x = record.x + 2 * width * row
        if order:
            ordered = read_i64(record.scratch + 8 * thread)
            for k in range(width):
                write_u16(ordered + 2 * k, read_u16(x + 2 * read_i64(order + 8 * k)))
            x = ordered
        for group in range(groups):
            at = group * size
            out, terms = record.out + row * groups * size + at, record.terms + 8 * (row * groups + group)
            _quantize(x + 2 * at, width - at, out, terms, size)
