"""Inputs of a product with weights in groups: 8 bits a value, and a scale per token and group of inputs.

    x[t, k] ~ u[t, g] * q[t, k]       g: the group of k; q integers of -127 .. 127, u = max_k |x[t, k]| / 127

Of each group there is what a product with its integers needs, its terms: u as a float32, and where the sum of
products with p - z + OFFSET begins, an int32: BASE_BITS - OFFSET * sum_k q[t, k]
(kernels.cpu.matmul.groups.vectors). With two levels of scales MIDDLE stands for OFFSET, and -sum_k q[t, k] of
each part of the group follows.

A value that is much larger than the others, which trained models have in a few places, costs the others of
its group their precision, and no more.
"""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static, float32
from kernels.cpu.compiler.vectors import f32x16, i32x16
from kernels.cpu.isa.lanes import (
    bits_of,
    bits_of_lanes,
    float_of,
    larger_integer,
    largest_integer,
    nearest,
    store_i8,
    sum_of_lanes,
)
from kernels.cpu.isa.simd import load_bf16
from kernels.cpu.isa.vectors import LANES, read_i64, read_u16, write_u16, write_u32
from kernels.cpu.matmul.groups.vectors import BASE_BITS, MIDDLE, OFFSET, values_at
from kernels.cpu.matmul.records import PART, QuantizeGroupsRecord

LEAST = 1e-30
"""A group of nothing larger is a group of zeros."""
MAGNITUDE, INFINITY, NAN = 0x7FFFFFFF, 0x7F800000, 0x7FC00000
"""Of a float32: the bits without its sign, which are in the order of sizes, and two values."""


def _values(whole: Static[bool], at: int, left: int) -> f32x16:
    """16 values of a row, as float32. whole: all of them are there."""
    if whole:
        return load_bf16(at)
    return values_at(at, left)


def _quantize(whole: Static[bool], x: int, left: int, out: int, terms: int, size: int, levels: int) -> None:
    """One group. left: values of x from there on; behind them are zeros; levels: of scales. The scale of a
    group with a NaN or an infinite value is a NaN."""
    most = i32x16(0)
    for k in range(0, size, LANES):
        most = larger_integer(bits_of_lanes(_values(whole, x + 2 * k, left - k)) & MAGNITUDE, most)
    bits = largest_integer(most)
    largest, factor, total, before = float_of(bits), f32x16(0.0), i32x16(0), 0
    if largest > LEAST:
        factor = f32x16(float32(float32(127.0) / largest))
    for k in range(0, size, LANES):
        integers = nearest(_values(whole, x + 2 * k, left - k) * factor)
        store_i8(out + k, integers)
        total = total + integers
        if levels == 2 and k % PART == PART - LANES:
            so_far = sum_of_lanes(total)
            write_u32(terms + 8 + k // PART * 4, before - so_far)
            before = so_far
    write_u32(terms, NAN if bits >= INFINITY else bits_of(float32(largest / float32(127.0))))
    if levels == 2:
        write_u32(terms + 4, BASE_BITS - MIDDLE * before)
    else:
        write_u32(terms + 4, BASE_BITS - OFFSET * sum_of_lanes(total))


@operation
def quantize_groups(record: QuantizeGroupsRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    size, width, groups, order = record.group_size, record.width, record.groups, record.order
    term_bytes = 8 + size // PART * 4 if record.levels == 2 else 8
    for row in range(first, first + count):
        x = record.x + 2 * width * row
        if order:
            ordered = read_i64(record.scratch + 8 * thread)
            for k in range(width):
                write_u16(ordered + 2 * k, read_u16(x + 2 * read_i64(order + 8 * k)))
            x = ordered
        for group in range(groups):
            at = group * size
            out = record.out + row * groups * size + at
            terms = record.terms + term_bytes * (row * groups + group)
            if width - at >= size:
                _quantize(True, x + 2 * at, width - at, out, terms, size, record.levels)
            else:
                _quantize(False, x + 2 * at, width - at, out, terms, size, record.levels)
