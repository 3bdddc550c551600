"""Vectors of kernels' language, as Python computes with them: numpy arrays of a fixed length.

    +, -, *, /, unary -     of vectors of one type, or of a vector and a number, which stands for all lanes
    <<, >>, &, |, ^, ~      of integers; >> keeps the sign
    abs()                   of floats
    <, <=, >, >=, ==, !=    lane by lane, as a Mask
    &, |, ~                 of masks
    f32x16(0.0)             a number in all lanes

Everything else is a function of kernels.cpu.isa.simd. A float32 operation is rounded once, as numpy does it.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt


class Mask:
    """A bool for each lane, and so neither true nor false itself."""

    def __init__(self, lanes: npt.NDArray[np.bool_]) -> None:
        self.lanes = lanes

    def __and__(self, other: "Mask") -> "Mask":
        return Mask(self.lanes & other.lanes)

    def __or__(self, other: "Mask") -> "Mask":
        return Mask(self.lanes | other.lanes)

    def __invert__(self) -> "Mask":
        return Mask(~self.lanes)

    def __bool__(self) -> bool:
        raise TypeError("a mask is neither true nor false")


class Vector:
    """Base class of the types of vectors."""

    dtype: ClassVar[Any]
    count: ClassVar[int]
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, lanes: Any) -> None:
        """lanes: [count] of them, or a number for all."""
        with np.errstate(over="ignore"):
            every = np.broadcast_to(np.asarray(lanes).astype(self.dtype), (self.count,))
        self.lanes = np.ascontiguousarray(every)

    def _apply(self, operation: Callable[..., Any], *others: Any) -> Self:
        operands = [other.lanes if isinstance(other, Vector) else self.dtype(other) for other in others]
        with np.errstate(all="ignore"):
            return type(self)(operation(self.lanes, *operands))

    def _compare(self, operation: Callable[..., Any], other: Any) -> Mask:
        return Mask(operation(self.lanes, other.lanes if isinstance(other, Vector) else self.dtype(other)))

    def __add__(self, other: Self | float) -> Self:
        return self._apply(np.add, other)

    def __sub__(self, other: Self | float) -> Self:
        return self._apply(np.subtract, other)

    def __mul__(self, other: Self | float) -> Self:
        return self._apply(np.multiply, other)

    def __truediv__(self, other: Self | float) -> Self:
        return self._apply(np.true_divide, other)

    def __neg__(self) -> Self:
        return self._apply(np.negative)

    def __abs__(self) -> Self:
        return self._apply(np.abs)

    def __lshift__(self, other: Self | int) -> Self:
        return self._apply(np.left_shift, other)

    def __rshift__(self, other: Self | int) -> Self:
        return self._apply(np.right_shift, other)

    def __and__(self, other: Self | int) -> Self:
        return self._apply(np.bitwise_and, other)

    def __or__(self, other: Self | int) -> Self:
        return self._apply(np.bitwise_or, other)

    def __xor__(self, other: Self | int) -> Self:
        return self._apply(np.bitwise_xor, other)

    def __invert__(self) -> Self:
        return self._apply(np.invert)

    def __eq__(self, other: Self | float) -> Mask:  # type: ignore[override]
        return self._compare(np.equal, other)

    def __ne__(self, other: Self | float) -> Mask:  # type: ignore[override]
        return self._compare(np.not_equal, other)

    def __lt__(self, other: Self | float) -> Mask:
        return self._compare(np.less, other)

    def __le__(self, other: Self | float) -> Mask:
        return self._compare(np.less_equal, other)

    def __gt__(self, other: Self | float) -> Mask:
        return self._compare(np.greater, other)

    def __ge__(self, other: Self | float) -> Mask:
        return self._compare(np.greater_equal, other)


class f32x16(Vector):
    """16 float32."""

    dtype, count = np.float32, 16


class i32x16(Vector):
    """16 int32, which wrap around."""

    dtype, count = np.int32, 16


class f32x8(Vector):
    """8 float32."""

    dtype, count = np.float32, 8


class i32x8(Vector):
    """8 int32, which wrap around."""

    dtype, count = np.int32, 8


class f64x8(Vector):
    """8 float64."""

    dtype, count = np.float64, 8


class i64x8(Vector):
    """8 int64, which wrap around."""

    dtype, count = np.int64, 8


class i16x32(Vector):
    """32 int16, which wrap around."""

    dtype, count = np.int16, 32


class i8x64(Vector):
    """64 int8, which wrap around."""

    dtype, count = np.int8, 64
