"""Records as Python sees them: fields by name, at the offsets that kernels read."""

import ctypes
import struct

import pytest

from kernels.cpu.compiler.records import (
    Address,
    OperationRecord,
    Record,
    f32,
    f64,
    field_types,
    i64,
    record,
    u32,
)


@record
class Mixed(Record):
    """One field of each kind."""

    address_of_x: Address
    count: i64
    flags: u32
    factor: f32
    exact: f64 = 0


@record
class Child(OperationRecord):
    """Fields behind those of the base class."""

    x: Address
    width: i64 = 0


def test_fields_lie_as_c_has_them():
    one = Mixed(address_of_x=5, count=-2, flags=7, factor=0.5, exact=1e300)
    assert struct.unpack("<qqIfd", bytes(one)) == (5, -2, 7, 0.5, 1e300)
    assert Mixed.size() == 32
    assert [Mixed.offset(name) for name in ("address_of_x", "count", "flags", "factor", "exact")] == [
        *(0, 8, 16, 20, 24)
    ]
    assert Mixed.word("exact") == 3


def test_a_field_may_be_left_out_and_written_later():
    one = Mixed(address_of_x=1, count=2, flags=3, factor=4.0)
    assert one.exact == 0
    one.count, one.exact = 9, 2.5
    assert (one.count, one.exact) == (9, 2.5)


def test_numbers_wrap_as_in_memory():
    """As a kernel would read them."""
    assert Mixed(address_of_x=0, count=(1 << 63), flags=(1 << 32) + 1, factor=0.1).count == -(1 << 63)
    one = Mixed(address_of_x=0, count=0, flags=(1 << 32) + 1, factor=0.1)
    assert one.flags == 1 and one.factor == pytest.approx(0.1, rel=1e-7) and one.factor != 0.1


def test_records_of_an_array():
    """By address and index; what is written there is the array's."""
    array = (Mixed * 3)()
    for index in range(3):
        Mixed.at(ctypes.addressof(array), index).count = 10 + index
    assert [one.count for one in array] == [10, 11, 12]
    assert Mixed.at(array[1].address).count == 11


def test_fields_of_a_base_class_come_first():
    assert [*field_types(Child)] == ["operation", "rows", "x", "width"]
    assert Child.offset("x") == OperationRecord.size() == 16
    child = Child(x=3)
    assert (child.operation, child.rows, child.x, child.width) == (0, 0, 3, 0)


def test_only_zero_is_a_default():
    with pytest.raises(AssertionError, match="default other than 0"):

        @record
        class Wrong(Record):
            """A default that memory would not have."""

            count: i64 = 3
