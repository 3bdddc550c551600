"""Columns: `bytes` fields that hold little-endian numbers of one width.

A column costs one call to write and one to read, whatever its length; a repeated message costs one
object per entry. `array` and `memoryview` do it without a dependency, so that the frontend and the
engine core need none.
"""

import sys
from array import array
from collections.abc import Iterable

_SWAP = sys.byteorder == "big"
assert [array(code).itemsize for code in "BIfQ"] == [1, 4, 4, 8]


def pack_u8(values: Iterable[int]) -> bytes:
    """Integers in [0, 2**8) as a column."""
    return bytes(values)


def pack_u32(values: Iterable[int]) -> bytes:
    """Integers in [0, 2**32) as a column. Raises OverflowError outside the range."""
    return _pack("I", values)


def pack_u64(values: Iterable[int]) -> bytes:
    """Integers in [0, 2**64) as a column. Raises OverflowError outside the range."""
    return _pack("Q", values)


def pack_f32(values: Iterable[float]) -> bytes:
    """Numbers as a column of float32."""
    column = array("f", values)
    if _SWAP:
        column.byteswap()
    return column.tobytes()


def unpack_u8(column: bytes) -> list[int]:
    """The integers of a column of width 1."""
    return list(column)


def unpack_u32(column: bytes) -> list[int]:
    """The integers of a column of width 4. Raises ValueError when the length does not fit."""
    return _unpack_array("I", column).tolist()


def unpack_u64(column: bytes) -> list[int]:
    """The integers of a column of width 8. Raises ValueError when the length does not fit."""
    return _unpack_array("Q", column).tolist()


def unpack_f32(column: bytes) -> list[float]:
    """The numbers of a column of float32. Raises ValueError when the length does not fit."""
    return unpack_f32_array(column).tolist()


def unpack_f32_array(column: bytes) -> "array[float]":
    """As unpack_f32, but without an object for each number."""
    values = array("f")
    values.frombytes(column)
    if _SWAP:
        values.byteswap()
    return values


def unpack_u32_array(column: bytes) -> "array[int]":
    """As unpack_u32, but without an object for each integer: for long columns that are kept."""
    return _unpack_array("I", column)


def _pack(code: str, values: Iterable[int]) -> bytes:
    column = array(code, values)
    if _SWAP:
        column.byteswap()
    return column.tobytes()


def _unpack_array(code: str, column: bytes) -> "array[int]":
    values = array(code, column)
    if _SWAP:
        values.byteswap()
    return values
