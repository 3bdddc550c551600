"""Vectors of 32 numbers of 16 bits: compiled code gives what the references give, bit for bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("llvmlite")
from kernels.cpu.compiler.cache import compiled  # noqa: E402
from kernels.cpu.compiler.language import unlikely  # noqa: E402
from kernels.cpu.compiler.vectors import i16x32  # noqa: E402
from kernels.cpu.isa.sets.halves import (  # noqa: E402
    any_of,
    bits_of_halves,
    bytes_of,
    bytes_of_table,
    constant_i8,
    count_of,
    halves_of_bytes,
    halves_of_rows,
    hidden,
    interleaved_bytes,
    load_i8x64,
    load_i16x32,
    packed_bytes,
    reaches,
    replaced,
    store_i16x32,
    words_of,
)
from kernels.cpu.isa.simd import select, store_i32  # noqa: E402
from kernels.cpu.isa.vectors import write_i64  # noqa: E402

pytestmark = pytest.mark.cpu_kernels
VALUES = np.random.default_rng(1).integers(-(2**15), 2**15, 96).astype(np.int16)
descending = constant_i8(15 - byte % 16 for byte in range(64))


def bytes_and_words(x: int, out: int) -> None:
    """Packed, in turns, and by a table."""
    first, second = load_i16x32(x), load_i16x32(x + 64)
    store_i16x32(out, halves_of_bytes(packed_bytes(first & 0xFF, second & 0xFF)))
    store_i16x32(out + 64, halves_of_bytes(interleaved_bytes(load_i8x64(x), bytes_of(second), 0)))
    store_i16x32(out + 128, halves_of_bytes(interleaved_bytes(load_i8x64(x), bytes_of(second), 1)))
    store_i16x32(out + 192, halves_of_bytes(bytes_of_table(descending(), load_i8x64(x + 128))))
    store_i32(out + 256, words_of(hidden(first >> 4)))


def rows(x: int, out: int) -> None:
    """Each word of four, of rows that overlap."""
    store_i16x32(out, halves_of_rows(x, 10, 0))
    store_i16x32(out + 64, halves_of_rows(x, 10, 1))
    store_i16x32(out + 128, halves_of_rows(x, 10, 2))
    store_i16x32(out + 192, halves_of_rows(x + 2, 8, 3))


def masks(x: int, out: int) -> None:
    """Numbers without sign from a limit on: replaced, counted, and written side by side."""
    values = load_i16x32(x)
    are_large = reaches(values, 0xC000)
    store_i16x32(out, replaced(values, load_i16x32(x + 64), are_large))
    store_i16x32(out + 64, select(are_large, i16x32(7), values))
    write_i64(out + 128, count_of(are_large))
    write_i64(out + 136, bits_of_halves(are_large))
    if unlikely(any_of(values == 12345)):
        write_i64(out + 264, 1)


@pytest.mark.parametrize("kernel", [bytes_and_words, masks, rows])
def test_compiled_code_is_python(kernel: Callable[[int, int], None]) -> None:
    results: list[npt.NDArray[Any]] = []
    for run in (compiled(kernel), kernel):
        results.append(np.zeros(320, np.uint8))
        run(VALUES.ctypes.data, results[-1].ctypes.data)
    assert np.array_equal(*results) and results[0].any()


def test_references() -> None:
    """Of what their names promise."""
    numbers = i16x32(range(32))
    assert replaced(numbers, i16x32(range(100, 132)), reaches(numbers, 30)).lanes.tolist()[-3:] == [
        29,
        100,
        101,
    ]
    assert count_of(reaches(i16x32(-1), 0xFFFF)) == 32 and not any_of(reaches(numbers, 32))
    table = np.arange(16 * 12, dtype=np.int16).reshape(16, 12)
    third = halves_of_rows(table.ctypes.data + 4, 24, 2)
    assert third.lanes.reshape(16, 2).tolist() == table[:, 6:8].tolist()
    assert packed_bytes(numbers, i16x32(200)).lanes.view(np.uint8).tolist()[:10] == [*range(8), 200, 200]
