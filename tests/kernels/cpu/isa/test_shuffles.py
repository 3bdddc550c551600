"""Lanes in other places: compiled code gives what Python gives, and rows are reduced in one order."""

import numpy as np
import pytest

pytest.importorskip("llvmlite")
from kernels.cpu.compiler.cache import compiled  # noqa: E402
from kernels.cpu.compiler.language import Static, unroll  # noqa: E402
from kernels.cpu.compiler.vectors import f32x16  # noqa: E402
from kernels.cpu.isa.lanes import larger  # noqa: E402
from kernels.cpu.isa.shuffles import (  # noqa: E402
    first_halves,
    lane_of,
    reduce_rows,
    repeat_lane,
    second_halves,
    spread_lanes,
    swap_neighbours,
)
from kernels.cpu.isa.simd import load_f32, store_f32  # noqa: E402

pytestmark = pytest.mark.cpu_kernels

RESULTS, WIDTHS = 10, ((0, 16), (1, 8), (2, 4), (3, 2))


def shuffle(at: int, out: int) -> None:
    """All of them, of two vectors."""
    x, y = load_f32(at), load_f32(at + 64)
    for number, width in unroll(WIDTHS):
        store_f32(out + 128 * number, first_halves(x, y, width))
        store_f32(out + 128 * number + 64, second_halves(x, y, width))
    store_f32(out + 512, swap_neighbours(x, 2))
    store_f32(out + 576, spread_lanes(repeat_lane(x, 3) + x, 4) + f32x16(lane_of(y, 15)))


def test_lanes_go_where_the_docstrings_say():
    values, out = np.arange(32, dtype=np.float32), np.zeros((2, RESULTS, 16), np.float32)
    compiled(shuffle)(values.ctypes.data, out[0].ctypes.data)
    shuffle(values.ctypes.data, out[1].ctypes.data)
    assert (out[0] == out[1]).all()
    x, y = values[:16], values[16:]
    for number, width in enumerate((16, 8, 4, 2)):
        halves = np.concatenate((x, y)).reshape(-1, 2, width // 2)
        assert (out[0, 2 * number] == halves[:, 0].ravel()).all()
        assert (out[0, 2 * number + 1] == halves[:, 1].ravel()).all()
    assert out[0, 8].tolist() == x.reshape(4, 2, 2)[:, ::-1].ravel().tolist()
    assert out[0, 9].tolist() == 4 * [3 + lane + 31 for lane in (0, 4, 8, 12)]


def add(x: f32x16, y: f32x16) -> f32x16:
    return x + y


def reduce(rows: Static[int], at: int, out: int) -> None:
    """Sums and largest lanes of so many rows."""
    values = [load_f32(at + 64 * m) for m in unroll(range(rows))]
    store_f32(out, reduce_rows(add, values))
    store_f32(out + 64, reduce_rows(larger, values))


def reduce_all(at: int, out: int) -> None:
    """Of 1 row, 2, ..., 8."""
    for rows in unroll(range(1, 9)):
        reduce(rows, at, out + 128 * (rows - 1))


def test_rows_are_reduced_in_one_order():
    """To the roundings of float32; and a row's result has the same bits, however many there are."""
    values = np.random.default_rng(1).normal(0, 100, (8, 16)).astype(np.float32)
    out = np.zeros((2, 8, 2, 16), np.float32)
    compiled(reduce_all)(values.ctypes.data, out[0].ctypes.data)
    reduce_all(values.ctypes.data, out[1].ctypes.data)
    assert (out[0] == out[1]).all()
    for rows in range(1, 9):
        sums, largest = out[0, rows - 1, :, :rows]
        assert (sums == out[0, 7, 0, :rows]).all() and (largest == values[:rows].max(1)).all()
    np.testing.assert_allclose(out[0, 7, 0, :8], values.astype(np.float64).sum(1), atol=1e-4)
