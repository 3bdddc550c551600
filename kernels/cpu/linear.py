"""The product of kernels.linear in bfloat16, on packed weights.

A tile is MR rows of x times 48 columns of the weight: MR x 3 registers of sums. Each step of its loop
over k loads three registers of weights, repeats a pair of x 16 times for every row, and adds 32 * 3
products per row.

                  48 columns
             w  [k, k+1] x 16 | 16 | 16          loaded once for MR rows
    x row 0  [k, k+1]   sums    sums  sums
    x row 1  [k, k+1]   sums    sums  sums       up to 8 rows: 24 of the 32 registers

Every tile adds the pairs of k in ascending order, so that a result does not depend on the tile, that
is, on how many rows there are.
"""

from typing import Any

from numba import prange, types
from numba.extending import intrinsic

from kernels.cpu.compiler import compiled
from kernels.cpu.vectors import (
    F32S,
    LANES,
    dot_pairs,
    first_lanes,
    load,
    pairs_at,
    repeat,
    repeated_pair,
    rounded,
    store_lanes,
    word,
    zeros,
)

VECTORS = 3
COLUMNS = VECTORS * LANES
"""Columns of a tile, and of a block of packed weights. Tiles of 12 rows x 2 vectors reach 330
GFLOP/s on two Zen 4 cores, 8 x 3 reach 450 of 469."""
ROWS = 256
"""Rows that are computed before the next ones: x then stays in the second-level cache, while the
weights come from memory once per chunk."""


def _make_tile(rows: int) -> Any:
    """tile(x, x_stride, w, bias, out, out_stride, pairs, columns, width): addresses; strides in bytes;
    pairs: of k; columns: how many of the 48 exist; width: bytes of a result, 4: float32, 2: bfloat16."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, x_stride, w, bias, out, out_stride, pairs, columns, width = args

        def add_pairs(k: Any, sums: list[Any]) -> list[Any]:
            w_at = builder.add(w, builder.mul(k, word(4 * COLUMNS)))
            weights = [pairs_at(builder, builder.add(w_at, word(64 * v))) for v in range(VECTORS)]
            x_at = builder.add(x, builder.mul(k, word(4)))
            totals = []
            for m in range(rows):
                pair = repeated_pair(builder, builder.add(x_at, builder.mul(x_stride, word(m))))
                of_row = sums[m * VECTORS : (m + 1) * VECTORS]
                totals += [dot_pairs(builder, one, w, pair) for one, w in zip(of_row, weights, strict=True)]
            return totals

        totals = repeat(builder, pairs, zeros(rows * VECTORS), add_pairs)
        for v in range(VECTORS):
            mask = first_lanes(builder, builder.sub(columns, word(v * LANES)))
            added = load(builder, builder.add(bias, word(64 * v)), F32S)
            first = builder.add(out, builder.mul(width, word(v * LANES)))
            results = [builder.fadd(total, added) for total in totals[v::VECTORS]]
            to = [builder.add(first, builder.mul(out_stride, word(m))) for m in range(rows)]
            with builder.if_else(builder.icmp_signed("==", width, word(4))) as (wide, narrow):
                with wide:
                    for result, address in zip(results, to, strict=True):
                        store_lanes(builder, result, address, mask)
                with narrow:
                    for result, address in zip(results, to, strict=True):
                        store_lanes(builder, rounded(builder, result), address, mask)
        return context.get_dummy_value()

    @intrinsic
    def tile(
        typing: Any,
        x: Any,
        x_stride: Any,
        w: Any,
        bias: Any,
        out: Any,
        out_stride: Any,
        pairs: Any,
        columns: Any,
        width: Any,
    ) -> Any:
        return types.void(*[types.int64] * 9), generate

    return tile


_tile_1, _tile_2, _tile_4, _tile_8 = (_make_tile(rows) for rows in (1, 2, 4, 8))


@compiled("void(int64, int64, int64, int64, int64, int64, int64, int64)")
def linear_bf16(x: int, w: int, bias: int, out: int, rows: int, columns: int, pairs: int, width: int) -> None:
    """x: address of [rows, 2 * pairs] bfloat16. w, bias: of a packed weight (kernels.linear).
    out: of [rows, columns], float32 where width is 4, bfloat16 where it is 2."""
    x_stride, out_stride = pairs * 4, columns * width
    for first in range(0, rows, ROWS):
        last = min(rows, first + ROWS)
        for block in prange((columns + COLUMNS - 1) // COLUMNS):
            w_at, b_at = w + block * pairs * 4 * COLUMNS, bias + block * 4 * COLUMNS
            left = columns - block * COLUMNS
            row = first
            while row < last:
                x_at, out_at = x + row * x_stride, out + row * out_stride + block * COLUMNS * width
                if last - row >= 8:
                    _tile_8(x_at, x_stride, w_at, b_at, out_at, out_stride, pairs, left, width)
                    row += 8
                elif last - row >= 4:
                    _tile_4(x_at, x_stride, w_at, b_at, out_at, out_stride, pairs, left, width)
                    row += 4
                elif last - row >= 2:
                    _tile_2(x_at, x_stride, w_at, b_at, out_at, out_stride, pairs, left, width)
                    row += 2
                else:
                    _tile_1(x_at, x_stride, w_at, b_at, out_at, out_stride, pairs, left, width)
                    row += 1
