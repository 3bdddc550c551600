"""Columns of numbers: the bytes that stand for them, on processors of either order, and what is refused."""

from array import array
from collections.abc import Callable

import pytest

from pagewire.ipc import columns
from pagewire.ipc.columns import (
    pack_u8,
    pack_u32,
    pack_u64,
    unpack_f32,
    unpack_f32_array,
    unpack_u8,
    unpack_u32,
    unpack_u32_array,
    unpack_u64,
)
from tests.logprob_columns import pack_f32

Pack, Unpack = Callable[[list[float]], bytes], Callable[[bytes], list[float]]
KINDS: list[tuple[Pack, Unpack, list[float], bytes]] = [
    (pack_u8, unpack_u8, [0, 1, 255], b"\x00\x01\xff"),
    (pack_u32, unpack_u32, [1, 0x01020304, 2**32 - 1], b"\x01\0\0\0\x04\x03\x02\x01\xff\xff\xff\xff"),
    (pack_u64, unpack_u64, [2, 2**64 - 2], b"\x02\0\0\0\0\0\0\0\xfe" + 7 * b"\xff"),
    (pack_f32, unpack_f32, [1.0, -0.0, 2.5, float("inf")], b"\0\0\x80?\0\0\0\x80\0\0 @\0\0\x80\x7f"),
]


@pytest.mark.parametrize(("pack", "unpack", "values", "data"), KINDS)
def test_numbers_are_little_endian(pack: Pack, unpack: Unpack, values: list[float], data: bytes):
    """And come back as plain numbers, of any iterable, or of none."""
    assert pack(values) == pack(iter(values)) == data  # type: ignore[arg-type]
    assert unpack(data) == values and [type(value) for value in unpack(data)] == [type(values[0])] * len(
        values
    )
    assert pack([]) == b"" and unpack(b"") == []


@pytest.mark.parametrize(("pack", "unpack", "values", "data"), KINDS)
def test_the_other_order_of_bytes(
    pack: Pack, unpack: Unpack, values: list[float], data: bytes, monkeypatch: pytest.MonkeyPatch
):
    """A processor that has it turns each number around, so that here all come out turned."""
    monkeypatch.setattr(columns, "_SWAP", True)
    width = len(data) // len(values)
    turned = b"".join(data[at : at + width][::-1] for at in range(0, len(data), width))
    assert unpack(turned) == values and (pack is pack_f32 or pack(values) == turned)


def test_long_columns_have_no_object_for_each_number():
    assert unpack_u32_array(pack_u32([7, 8])) == array("I", [7, 8])
    assert unpack_f32_array(pack_f32([0.5, 8])) == array("f", [0.5, 8])


def test_numbers_are_rounded_to_float32():
    assert unpack_f32(pack_f32([0.1])) == [0.10000000149011612]
    assert unpack_f32(pack_f32([1e-50])) == [0.0]


@pytest.mark.parametrize(
    ("pack", "value"), [(pack_u32, -1), (pack_u32, 1 << 32), (pack_u64, -1), (pack_u64, 1 << 64)]
)
def test_integers_out_of_range(pack: Callable[[list[int]], bytes], value: int):
    with pytest.raises(OverflowError):
        pack([0, value])


@pytest.mark.parametrize("value", [-1, 256])
def test_bytes_out_of_range(value: int):
    with pytest.raises(ValueError, match="range"):
        pack_u8([value])


@pytest.mark.parametrize("unpack", [unpack_u32, unpack_u64, unpack_f32, unpack_f32_array, unpack_u32_array])
@pytest.mark.parametrize("length", [1, 3, 7, 9])
def test_columns_that_end_within_a_number(unpack: Callable[[bytes], object], length: int):
    with pytest.raises(ValueError, match="multiple"):
        unpack(bytes(length))
