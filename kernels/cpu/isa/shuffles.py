"""Lanes of vectors in other places, which are constants.

Each function is the reference of an intrinsic, as those of kernels.cpu.isa.simd; a number that says which
lanes is a constant of the kernel.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import Static, lowered_by, unroll
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.isa.vectors import I32, I32S, LANES

Join = Callable[[f32x16, f32x16], f32x16]


def _shuffled(builder: Any, x: Any, y: Any, lanes: list[int]) -> Any:
    """Lanes of two vectors; those of y are numbered from LANES on."""
    return builder.shuffle_vector(x, y, ir.Constant(I32S, lanes))


def _first_halves(width: int) -> list[int]:
    """The lanes of first_halves(), as _shuffled() numbers them."""
    return [first + i for first in range(0, 2 * LANES, width) for i in range(width // 2)]


def _second_halves(width: int) -> list[int]:
    return [lane + width // 2 for lane in _first_halves(width)]


_OF_ONE = types.f32x16(types.f32x16, types.int64)
_OF_TWO = types.f32x16(types.f32x16, types.f32x16, types.int64)


@lowered_by(
    lambda b, x, lane: b.extract_element(x, ir.Constant(I32, lane.constant)),
    types.float32(types.f32x16, types.int64),
)
def lane_of(x: f32x16, lane: int) -> float:
    """One lane."""
    return float(x.lanes[lane])


@lowered_by(lambda b, x, lane: _shuffled(b, x, x, [lane.constant] * LANES), _OF_ONE)
def repeat_lane(x: f32x16, lane: int) -> f32x16:
    """One lane in all lanes."""
    return f32x16(x.lanes[lane])


@lowered_by(lambda b, x, y, width: _shuffled(b, x, y, _first_halves(width.constant)), _OF_TWO)
def first_halves(x: f32x16, y: f32x16, width: int) -> f32x16:
    """The first half of each `width` lanes of x, then of y."""
    return f32x16(np.concatenate((x.lanes, y.lanes))[_first_halves(width)])


@lowered_by(lambda b, x, y, width: _shuffled(b, x, y, _second_halves(width.constant)), _OF_TWO)
def second_halves(x: f32x16, y: f32x16, width: int) -> f32x16:
    """The second half of each `width` lanes of x, then of y."""
    return f32x16(np.concatenate((x.lanes, y.lanes))[_second_halves(width)])


@lowered_by(lambda b, x, width: _shuffled(b, x, x, [lane ^ width.constant for lane in range(LANES)]), _OF_ONE)
def swap_neighbours(x: f32x16, width: int) -> f32x16:
    """Each `width` lanes and the next ones change places."""
    return f32x16(x.lanes[np.arange(LANES) ^ width])


@lowered_by(
    lambda b, x, step: _shuffled(b, x, x, [lane * step.constant % LANES for lane in range(LANES)]), _OF_ONE
)
def spread_lanes(x: f32x16, step: int) -> f32x16:
    """Lane 0, `step`, 2 * step, ..., then these again."""
    return f32x16(x.lanes[np.arange(LANES) * step % LANES])


def reduce_rows(join: Static[Join], rows: list[f32x16]) -> f32x16:
    """All lanes of each of up to 8 vectors as one, in lane m that of row m. Halves of a row are joined, then
    halves of these, ... until one lane is left: those of two rows at a time, which then share a vector.

        a0 .. a7 a8 .. a15    a0 .. a7 b0 .. b7      a0 .. a3 b0 .. b3 c0 .. c3 d0 .. d3
        b0 .. b7 b8 .. b15    a8 .. a15 b8 .. b15    a4 .. a7 ...

    The order in which a row's lanes are joined is the same whatever the number of rows."""
    if len(rows) <= 4:
        four = [rows[m if m < len(rows) else 0] for m in unroll(range(4))]
        joined = _join_halves(join, _join_halves(join, four, 16), 8)[0]
        joined = join(joined, swap_neighbours(joined, 2))
        joined = spread_lanes(join(joined, swap_neighbours(joined, 1)), 4)
    else:
        eight = [rows[m if m < len(rows) else 0] for m in unroll(range(8))]
        joined = _join_halves(join, _join_halves(join, _join_halves(join, eight, 16), 8), 4)[0]
        joined = spread_lanes(join(joined, swap_neighbours(joined, 1)), 2)
    return joined


def _join_halves(join: Static[Join], rows: list[f32x16], width: Static[int]) -> list[f32x16]:
    """The halves of each `width` lanes, those of two rows in one vector."""
    return [
        join(
            first_halves(rows[2 * m], rows[2 * m + 1], width),
            second_halves(rows[2 * m], rows[2 * m + 1], width),
        )
        for m in unroll(range(len(rows) // 2))
    ]
