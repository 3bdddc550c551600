"""Records: structures in memory, declared once, which Python writes and kernels read by the names of their
fields.

    @record
    class Scale(Record):
        x: Address  # [rows] float32
        rows: i64
        factor: f32

    Scale(x=x.data_ptr(), rows=3, factor=0.5)     Python: a ctypes.Structure
    scale.rows, scale.rows = 4                    Python and kernels
    Scale.at(address, 2).rows                     Python and kernels: the third record of an array
    scale.address                                 Python and kernels

A field with a default value may be left out, and is 0 then: 0 is the only default. A record keeps no memory
alive but its own.
"""

import ctypes
from collections.abc import Callable
from typing import Annotated, Any, Generic, Self, TypeVar, dataclass_transform, get_args, get_type_hints

i64 = Annotated[int, ctypes.c_int64]
u32 = Annotated[int, ctypes.c_uint32]
f32 = Annotated[float, ctypes.c_float]
f64 = Annotated[float, ctypes.c_double]
Address = Annotated[int, ctypes.c_int64]


class Record(ctypes.Structure):
    """Base class of records; decorate those with record()."""

    @property
    def address(self) -> int:
        """Where the record lies in memory."""
        return ctypes.addressof(self)

    @classmethod
    def at(cls, address: int, index: int = 0) -> Self:
        """The record with that index of an array at an address. It does not own its memory."""
        return cls.from_address(address + index * ctypes.sizeof(cls))

    @classmethod
    def offset(cls, field: str) -> int:
        """Bytes from the beginning of the record to the field."""
        return int(getattr(cls, field).offset)

    @classmethod
    def word(cls, field: str) -> int:
        """The index of the field where the record is seen as an array of int64."""
        return cls.offset(field) // 8

    @classmethod
    def size(cls) -> int:
        """Bytes of a record."""
        return ctypes.sizeof(cls)


AnyRecord = TypeVar("AnyRecord", bound=Record)


@dataclass_transform(kw_only_default=True)
def record(cls: type[AnyRecord]) -> type[AnyRecord]:
    """Decorates a record: its annotations become fields, in their order, behind those of its base class."""
    hints = get_type_hints(cls, include_extras=True)
    own = cls.__dict__["__annotations__"]
    assert not any(cls.__dict__.get(name) for name in own), f"{cls.__name__} has a default other than 0"
    cls._fields_ = [(name, get_args(hints[name])[1]) for name in own]
    return cls


@record
class OperationRecord(Record):
    """What a record of a program begins with (kernels.cpu.runtime.program)."""

    operation: Address = 0
    rows: i64 = 0


OwnRecord = TypeVar("OwnRecord", bound=OperationRecord)


class Operation(int, Generic[OwnRecord]):
    """The address of a compiled operation, which takes records of that type."""

    name: str
    """Module and function."""
    reference: Callable[[OwnRecord, int, int, int], None]
    """The same in Python."""

    def __new__(cls, address: int, name: str, reference: Callable[[OwnRecord, int, int, int], None]) -> Self:
        operation = super().__new__(cls, address)
        operation.name, operation.reference = name, reference
        return operation


def field_types(cls: type[Record]) -> dict[str, tuple[int, Any]]:
    """The offset and the ctypes type of each field."""
    kinds: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        kinds.update(base.__dict__.get("_fields_", ()))
    return {name: (cls.offset(name), kind) for name, kind in kinds.items()}
