"""Operations on vectors: compiled code gives what the references give, bit for bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("llvmlite")
from kernels.cpu.compiler.cache import compiled  # noqa: E402
from kernels.cpu.compiler.vectors import f32x16, i32x16  # noqa: E402
from kernels.cpu.isa.lanes import (  # noqa: E402
    any_lane,
    bits_of_mask,
    byte_table,
    interleaved,
    larger,
    largest_lane,
    lowest_bit,
    mask_of_bits,
    nearest,
    smaller,
    store_i8,
    truncated,
)
from kernels.cpu.isa.simd import (  # noqa: E402
    PAIR_PARTS,
    QUAD_PARTS,
    bf16_of,
    load_f32,
    load_first_i32,
    load_i32,
    pair_inputs,
    quad_inputs,
    rint,
    select,
    store_f32,
    store_i32,
)
from kernels.cpu.isa.vectors import write_f32, write_u16  # noqa: E402

pytestmark = pytest.mark.cpu_kernels

Array = npt.NDArray[Any]
FLOATS = np.array(
    [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.75, 1e-40, -7.25, 1e6, 123456.7, -99.5, 8.0, 2.0**24, -1.0],
    np.float32,
)
INTEGERS = np.random.default_rng(1).integers(-(2**31), 2**31, 32).astype(np.int32)
SQUARES = [value * value for value in range(16)]
squares_of = byte_table(SQUARES)


def both(kernel: Callable[[int, int], None], x: Array, size: int = 256) -> None:
    """Compares what compiled code and Python write, of `x`."""
    results = [np.zeros(size, np.uint8) for _ in range(2)]
    for function, out in zip((compiled(kernel), kernel), results, strict=True):
        function(x.ctypes.data, out.ctypes.data)
    assert np.array_equal(*results) and results[0].any()


def whole_numbers(x: int, out: int) -> None:
    """Rounded, cut off, and as bytes."""
    values = load_f32(x)
    store_f32(out, rint(values))
    store_i32(out + 64, truncated(values))
    store_i32(out + 128, nearest(values))
    store_i8(out + 192, truncated(values))


def signs_and_equals(x: int, out: int) -> None:
    """abs(), ==, !=; select() of both types of vectors."""
    values, integers = load_f32(x), truncated(load_f32(x))
    store_f32(out, select(values == abs(values), values * 2.0, values))
    store_i32(out + 64, select(integers != -2, integers, integers + 7))
    store_f32(out + 128, larger(smaller(values, f32x16(3.0)), f32x16(-1.0)))
    write_f32(out + 192, largest_lane(values))
    write_u16(out + 196, bf16_of(largest_lane(values * 1.01)))


def words(x: int, out: int) -> None:
    """In turns; bytes by a table; a few of them."""
    first, second = load_i32(x), load_i32(x + 64)
    store_i32(out, interleaved(first, second, 0))
    store_i32(out + 64, interleaved(first, second, 1))
    store_i32(out + 128, squares_of(first & 0x0F0F0F0F))
    store_i32(out + 192, load_first_i32(x, 5))


def inputs(x: int, out: int) -> None:
    """The last part of each word; all words, where there are more than 16."""
    values = load_first_i32(x, 99)
    store_i32(out, pair_inputs(values, PAIR_PARTS - 1))
    store_i32(out + 64, quad_inputs(values, QUAD_PARTS - 1))
    store_i32(out + 128, pair_inputs(values, 0))
    store_i32(out + 192, quad_inputs(values, 0))


@pytest.mark.parametrize("kernel", [whole_numbers, signs_and_equals])
def test_floats(kernel: Callable[[int, int], None]) -> None:
    both(kernel, FLOATS)


@pytest.mark.parametrize("kernel", [words, inputs])
def test_integers(kernel: Callable[[int, int], None]) -> None:
    both(kernel, INTEGERS)


def test_references() -> None:
    """Of what their names promise."""
    assert rint(f32x16(FLOATS)).lanes[2:7].tolist() == [0, -0.0, 2, 2, -2]
    assert truncated(f32x16(FLOATS)).lanes[2:8].tolist() == [0, 0, 1, 2, -2, 3]
    first, second = i32x16(range(16)), i32x16(range(100, 116))
    assert interleaved(first, second, 1).lanes.tolist()[:4] == [8, 108, 9, 109]
    assert squares_of(i32x16(0x03020100)).lanes[0] == 0x09040100
    assert bf16_of(1.00390625) == 0x3F80


def test_a_mask_is_no_bool() -> None:
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(f32x16(1.0) < 2.0)


def masks(x: int, out: int) -> None:
    """Between masks and bits; the first set one."""
    values = load_f32(x)
    above = bits_of_mask(values > 1.0)
    write_u16(out, above)
    write_u16(out + 2, lowest_bit(above))
    write_u16(out + 4, int(any_lane(values > 1e9)) + 2 * int(any_lane(values < -99.0)))
    store_f32(out + 64, select(mask_of_bits(above), values, f32x16(5.0)))


def test_masks() -> None:
    both(masks, FLOATS)
    assert bits_of_mask(f32x16(range(16)) < 3.0) == 7 and lowest_bit(0b101000) == 3
    assert mask_of_bits(0x8001).lanes.tolist() == [True, *[False] * 14, True]
