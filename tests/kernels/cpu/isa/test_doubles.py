"""Vectors of 8 float64: compiled code gives what the references give, bit for bit."""

import numpy as np
import pytest

pytest.importorskip("llvmlite")
from kernels.cpu.compiler.cache import compiled  # noqa: E402
from kernels.cpu.compiler.vectors import f64x8, i64x8  # noqa: E402
from kernels.cpu.isa.doubles import (  # noqa: E402
    as_f64,
    bits_of_f64,
    load_f32x8,
    load_f64x8,
    store_f32x8,
    store_f64x8,
    to_f64,
    truncated_i64,
)
from kernels.cpu.isa.simd import fma, rint, select, sum_in_order  # noqa: E402
from kernels.cpu.isa.vectors import write_f64  # noqa: E402

pytestmark = pytest.mark.cpu_kernels
VALUES = np.array([1.1, -2.5, 3e-320, 1e308, -0.0, 0.1, 3.5, -77.25])


def each_operation(x: int, narrow: int, out: int) -> None:
    values, floats = load_f64x8(x), load_f32x8(narrow)
    store_f64x8(out, fma(values, values, -values))
    store_f64x8(out + 64, rint(values))
    store_f32x8(out + 160, select(floats >= 0.1, floats, -floats))
    store_f64x8(out + 192, select(values < to_f64(floats), abs(values), to_f64(floats) / 3.0))
    store_f64x8(out + 256, as_f64(bits_of_f64(values) + (truncated_i64(to_f64(floats)) << 52 >> 1)))
    write_f64(out + 320, sum_in_order(values))


def test_compiled_code_is_python() -> None:
    floats = np.array([0.5, -1.9, 7.7, 0.1, -0.0, 1e-45, 3.0, -3.0], np.float32)
    machine, results = compiled(each_operation), np.zeros((2, 328), np.uint8)
    for run, out in zip((machine, each_operation), results, strict=True):
        run(VALUES.ctypes.data, floats.ctypes.data, out.ctypes.data)
    assert np.array_equal(*results) and results[0].any()


def test_references() -> None:
    """Rounded once; 64 bits wrap around; cut off towards 0."""
    tiny = f64x8(2.0**-60)
    assert (fma(f64x8(1.0) + 2.0**-52, f64x8(1.0) - 2.0**-52, f64x8(-1.0)).lanes == -(2.0**-104)).all()
    assert (fma(f64x8(1e308), f64x8(10.0), tiny).lanes == np.inf).all()
    assert np.isnan(fma(f64x8(np.nan), tiny, tiny).lanes).all()
    assert (i64x8(2**63 - 1) + 1).lanes.tolist() == [-(2**63)] * 8
    assert truncated_i64(f64x8([1.9, -1.9, 0, 5, 6, 7, 8, 9])).lanes.tolist()[:2] == [1, -1]
    assert sum_in_order(f64x8([1.0, 1e16, -1e16, 1, 0, 0, 0, 0])) == 1.0
