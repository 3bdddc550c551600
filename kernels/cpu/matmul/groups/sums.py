"""Sums of products of the words of a group, which few rows take apart while they multiply."""

from typing import Any

from kernels.cpu.compiler.language import Static, unroll
from kernels.cpu.compiler.vectors import i32x16
from kernels.cpu.isa.simd import add_two_nibbles, load_i32, prefetch
from kernels.cpu.isa.vectors import read_u32
from kernels.cpu.matmul.groups.vectors import LINE, integers_in

AHEAD = 16 * LINE
"""Bytes between what one row multiplies with and what it prefetches."""


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
