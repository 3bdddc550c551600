"""What a product with two levels of scales (kernels.cpu.matmul.groups.weight) does by itself.

    y[t, n] = b[n] + s[n] * sum_g u[t, g] * v[t, n, g]
    v[t, n, g] = sum_h m[n, h] * (sum_k p[n, k] * q[t, k] - z[n, h] * sum_k q[t, k])

g: a group of inputs, h: its parts of PART inputs. m * (p - z) is an integer of 8 bits with a sign, so that
all within a group is int32 and exact: the two products of floats for each sum that every 32 inputs take with
one level (kernels.cpu.matmul.groups.product) are one for up to 128 inputs, and the scale of a column is
multiplied once, at the end.

Few rows multiply the sums of parts with m. Of many rows, words become bytes m * (p - z) + MIDDLE, once for
all of them (kernels.cpu.matmul.groups.many_rows): four bytes of the lower or upper values of a word are

    bytes * m + (MIDDLE - m * z) * 0x01010101

where neither the products, 225 at most, nor the sums, 1 .. 255, carry anything from byte to byte.
"""

from typing import Any

from kernels.cpu.compiler.language import Static, unroll
from kernels.cpu.compiler.vectors import f32x16, i32x16
from kernels.cpu.isa.lanes import multiply_halves, multiply_small
from kernels.cpu.isa.simd import fma, load_f32, load_i32, to_f32
from kernels.cpu.isa.vectors import LANES, read_f32, read_u32
from kernels.cpu.matmul.groups.vectors import (
    LINE,
    LOWER,
    MIDDLE,
    PART_WORDS,
    TWO_LEVELS,
    add_group,
    bytes_of_terms,
    result_of,
)
from kernels.cpu.matmul.records import GroupLinearRecord
from kernels.cpu.matmul.words import store_columns

SMALL = 15
"""The largest m and z, 4 bits each: a byte of both for each part of a group."""


def _part_sums(
    rows: Static[int], vectors: Static[int], scales: list[Any], xs: list[Any], terms: list[Any], w: int
) -> list[Any]:
    """m * the sums of a part, by row and vector. scales: of each vector m and 16 * z; xs, terms: addresses of
    the part's integers and of its sum, by row; w: address of its words."""
    totals: list[Any] = [
        multiply_small(scales[i % vectors] >> 4 & SMALL, i32x16(read_u32(terms[i // vectors])))
        for i in unroll(range(rows * vectors))
    ]
    add_group(rows, vectors, TWO_LEVELS, totals, xs, 0, w, PART_WORDS)
    return [totals[i] * (scales[i % vectors] & SMALL) for i in unroll(range(rows * vectors))]


def two_level_tile(
    rows: Static[int],
    vectors: Static[int],
    record: GroupLinearRecord,
    row: int,
    strip: int,
    w: int,
) -> None:
    """Rows of the result from `row` on, times columns of the strips from `strip` on. w: address of the first
    strip's words."""
    words, every = record.group_words, record.words // record.group_words
    term_bytes, stride = bytes_of_terms(TWO_LEVELS, words), record.columns * record.out_bytes
    xs = [record.x + 8 * record.words * (row + m) for m in unroll(range(rows))]
    terms = [record.terms + term_bytes * every * (row + m) for m in unroll(range(rows))]
    sums: list[Any] = [f32x16(0.0) for _ in unroll(range(rows * vectors))]
    at, offset, term = w, 0, 0
    for _ in range(every >> record.depth):
        totals: list[Any] = [i32x16(0) for _ in unroll(range(rows * vectors))]
        column = at + LINE * words
        for part in range(words // PART_WORDS):
            scales = [load_i32(column + 64 * v) >> 8 * part for v in unroll(range(vectors))]
            values = [xs[m] + offset for m in unroll(range(rows))]
            places = [terms[m] + term + 8 + 4 * part for m in unroll(range(rows))]
            more = _part_sums(rows, vectors, scales, values, places, at)
            for i in unroll(range(rows * vectors)):
                totals[i] = totals[i] + more[i]
            at += LINE * PART_WORDS
            offset += 8 * PART_WORDS
        for i in unroll(range(rows * vectors)):
            unit = f32x16(read_f32(terms[i // vectors] + term))
            sums[i] = fma(to_f32(totals[i]), unit, sums[i])
        at += LINE
        term += term_bytes
    out = record.out + row * stride + LANES * strip * record.out_bytes
    for v in unroll(range(vectors)):
        params, left = record.params + 128 * (strip + v), record.columns - LANES * (strip + v)
        scale, bias = load_f32(params + 64), load_f32(params)
        for m in unroll(range(rows)):
            result = result_of(TWO_LEVELS, sums[vectors * m + v], scale, bias)
            place = out + stride * m + LANES * v * record.out_bytes
            store_columns(place, record.out_bytes, result, left)


def level_bytes(word: i32x16, half: Static[int], scales: i32x16) -> i32x16:
    """m * (p - z) + MIDDLE of four of the eight values of each word. scales: m + 16 * z in the first byte."""
    small = scales & SMALL
    add = (i32x16(MIDDLE) - multiply_small(small, scales >> 4 & SMALL)) * 0x01010101
    return multiply_halves(word >> (4 * half) & LOWER, small | small << 16) + add
