"""Vectors as Python computes with them: the lanes that numpy has, of a fixed number and type."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernels.cpu.compiler.vectors import Mask, Vector, f32x8, f32x16, f64x8, i8x64, i16x32, i32x16, i64x8

FLOATS, INTEGERS = [f32x8, f32x16, f64x8], [i8x64, i16x32, i32x16, i64x8]
ARITHMETIC = [operator.add, operator.sub, operator.mul]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


def numbers(kind: type[Vector], seed: int = 0) -> Any:
    """[count] of the type, all over its range where they are integers."""
    rng = np.random.default_rng(seed)
    if kind in FLOATS:
        return rng.normal(0, 10, kind.count).astype(kind.dtype)
    bounds = np.iinfo(kind.dtype)
    return rng.integers(bounds.min, bounds.max, kind.count, dtype=kind.dtype, endpoint=True)


@pytest.mark.parametrize("kind", [*FLOATS, *INTEGERS])
def test_a_number_stands_for_all_lanes(kind: type[Vector]):
    assert kind(3).lanes.tolist() == [3] * kind.count
    assert kind(3).lanes.dtype == kind.dtype and kind(numbers(kind)).lanes.shape == (kind.count,)
    assert (kind(5) + 2).lanes.tolist() == [7] * kind.count


@pytest.mark.parametrize("kind", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("count", [2, 3, 128])
def test_other_numbers_of_lanes_are_refused(kind: type[Vector], count: int):
    with pytest.raises(ValueError, match="broadcast"):
        kind(np.zeros(count))


@pytest.mark.parametrize("operation", ARITHMETIC)
@pytest.mark.parametrize("kind", [*FLOATS, *INTEGERS])
def test_arithmetic_is_that_of_the_lanes(
    kind: type[Vector], operation: Callable[[Any, Any], Any], recwarn: pytest.WarningsRecorder
):
    """Integers wrap around, silently; a number becomes the lanes' type first."""
    x, y = numbers(kind), numbers(kind, 1)
    result = operation(kind(x), kind(y))
    with np.errstate(all="ignore"):
        expected = operation(x, y)
    assert type(result) is kind and np.array_equal(result.lanes, expected)
    with np.errstate(all="ignore"):
        assert np.array_equal(operation(kind(x), 3).lanes, operation(x, kind.dtype(3)))
    assert not recwarn.list


@pytest.mark.parametrize("kind", FLOATS)
def test_a_division_by_zero_is_no_error(kind: type[Vector]):
    """Infinity with its sign, or NaN; of the smallest numbers, zeros with theirs."""
    values = [1.0, -1.0, 0.0, -0.0, 1e-45, 1e300, np.inf, np.nan]
    with np.errstate(all="ignore"):
        lanes = np.resize(np.array(values), kind.count).astype(kind.dtype)
        expected = lanes / kind.dtype(0)
    np.testing.assert_array_equal((kind(lanes) / 0.0).lanes, expected)
    assert np.array_equal(np.signbit((-kind(lanes)).lanes), ~np.signbit(lanes))
    np.testing.assert_array_equal(abs(kind(lanes)).lanes, np.abs(lanes))


@pytest.mark.parametrize("kind", FLOATS)
def test_what_is_too_large_becomes_infinite(kind: type[Vector]):
    assert (kind(1e39).lanes == (1e39 if kind is f64x8 else np.inf)).all()
    assert ((kind(np.finfo(kind.dtype).max) * 2.0).lanes == np.inf).all()


def test_each_operation_is_rounded_once():
    """Of float32: 1 / 3 * 3 is 1, and 0.1 + 0.2 is not that of float64."""
    tenth = f32x16(0.1) + 0.2
    assert tenth.lanes[0] == np.float32(0.1) + np.float32(0.2) != np.float32(0.1 + 0.2) + np.float32(1e-7)
    assert (f32x16(1.0) / 3.0).lanes[0] == np.float32(1) / np.float32(3)
    assert (f32x16(2.0**24) + 1.0).lanes[0] == 2.0**24
    assert (f64x8(2.0**24) + 1.0).lanes[0] == 2.0**24 + 1


@pytest.mark.parametrize("kind", INTEGERS)
def test_bits_of_integers(kind: type[Vector]):
    """A shift to the right keeps the sign."""
    x, y = numbers(kind), numbers(kind, 1)
    for operation in (operator.and_, operator.or_, operator.xor):
        assert np.array_equal(operation(kind(x), kind(y)).lanes, operation(x, y))
    assert np.array_equal((~kind(x)).lanes, ~x)
    assert np.array_equal((kind(x) << 3).lanes, x << kind.dtype(3))
    assert np.array_equal((kind(x) >> 3).lanes, x >> kind.dtype(3))
    assert ((kind(-1) >> 1).lanes == -1).all()


@pytest.mark.parametrize("operation", COMPARISONS)
@pytest.mark.parametrize("kind", [*FLOATS, *INTEGERS])
def test_comparisons_are_masks(kind: type[Vector], operation: Callable[[Any, Any], Any]):
    x = numbers(kind)
    y = np.where(np.arange(kind.count) % 3 == 0, x, numbers(kind, 1)).astype(kind.dtype)
    found = operation(kind(x), kind(y))
    assert isinstance(found, Mask) and np.array_equal(found.lanes, operation(x, y))
    assert np.array_equal(operation(kind(x), 7).lanes, operation(x, kind.dtype(7)))


def test_nan_is_unequal_to_everything():
    nan = f32x16(np.nan)
    for operation in COMPARISONS:
        assert operation(nan, nan).lanes.all() == (operation is operator.ne)


def test_masks_among_themselves():
    one, other = Mask(np.array([True, True, False, False])), Mask(np.array([True, False, True, False]))
    assert (one & other).lanes.tolist() == [True, False, False, False]
    assert (one | other).lanes.tolist() == [True, True, True, False]
    assert (~one).lanes.tolist() == [False, False, True, True]


def test_a_vector_has_lanes_of_its_own():
    """What becomes of the array that it was made of changes nothing, and it is no key of a dict."""
    lanes = np.arange(16, dtype=np.int32)
    vector = i32x16(lanes)
    lanes[:] = 7
    total = vector + 0
    assert total.lanes.tolist() == list(range(16))
    with pytest.raises(TypeError, match="unhashable"):
        hash(vector)
