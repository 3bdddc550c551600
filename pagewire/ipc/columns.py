"""Columns: `bytes` fields that hold little-endian numbers of one width.

A column is packed and unpacked by one call, whatever its length; a repeated message costs an object per
entry. `array` needs no dependency, so that the frontend and the engine core need none.
"""

import sys
from array import array
from collections.abc import Iterable

_SWAP = sys.byteorder == "big"
assert [array(code).itemsize for code in "BIfQ"] == [1, 4, 4, 8]


def pack_u8(values: Iterable[int]) -> bytes:
    """Packs integers in [0, 2**8)."""
    return bytes(values)


def pack_u32(values: Iterable[int]) -> bytes:
    """Packs integers in [0, 2**32). Raises OverflowError outside the range."""
    return _pack("I", values)


def pack_u64(values: Iterable[int]) -> bytes:
    """Packs integers in [0, 2**64). Raises OverflowError outside the range."""
    return _pack("Q", values)


def unpack_u8(column: bytes) -> list[int]:
    """Unpacks integers of 1 byte."""
    return list(column)


def unpack_u32(column: bytes) -> list[int]:
    """Unpacks integers of 4 bytes. Raises ValueError if the length is no multiple of that."""
    return _unpack_array("I", column).tolist()


def unpack_u64(column: bytes) -> list[int]:
    """Unpacks integers of 8 bytes. Raises ValueError if the length is no multiple of that."""
    return _unpack_array("Q", column).tolist()


def unpack_f32(column: bytes) -> list[float]:
    """Unpacks float32 numbers. Raises ValueError if the length is no multiple of 4."""
    return unpack_f32_array(column).tolist()


def unpack_f32_array(column: bytes) -> "array[float]":
    """Unpacks like unpack_f32(), without an object for each number."""
    values = array("f")
    values.frombytes(column)
    if _SWAP:
        values.byteswap()
    return values


def unpack_u32_array(column: bytes) -> "array[int]":
    """Unpacks like unpack_u32(), without an object for each integer: for long columns that are kept."""
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
