"""Records in kernels (kernels.cpu.compiler.records): fields become loads and stores at constant offsets."""

import ctypes
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.arithmetic import BOOL, FLOAT, FLOAT32, INT, CompileError, Value, convert, is_vector
from kernels.cpu.compiler.records import Record, field_types
from kernels.cpu.compiler.types import Type

_TYPES: dict[Any, Type] = {
    ctypes.c_int64: types.int64,
    ctypes.c_uint32: types.uint32,
    ctypes.c_float: types.float32,
    ctypes.c_double: types.float64,
}


@dataclass(frozen=True)
class RecordValue:
    """A record while compiling: its type is known, its address is a value."""

    kind: type[Record]
    address: Any

    def load(self, builder: Any, name: str) -> Value:
        """The value of a field, or the address of the record."""
        if name == "address":
            return self.address
        pointer, kind = self._field(builder, name)
        return widen(builder, builder.load(pointer), kind)

    def store(self, builder: Any, name: str, value: Value) -> None:
        """Assigns to a field."""
        pointer, kind = self._field(builder, name)
        builder.store(convert(builder, value, kind.llvm), pointer)

    def _field(self, builder: Any, name: str) -> tuple[Any, Type]:
        """A pointer to a field, and the type of what lies there."""
        offset, c_type = field_types(self.kind).get(name, (0, None))
        if c_type not in _TYPES:
            raise CompileError(f"{self.kind.__name__} has no number {name}")
        kind = _TYPES[c_type]
        address = builder.add(self.address, ir.Constant(INT, offset))
        return builder.inttoptr(address, kind.llvm.as_pointer()), kind


def is_record(annotation: Any) -> bool:
    """Whether an annotation is a type of records."""
    return isinstance(annotation, type) and issubclass(annotation, Record)


def record_at(function: Any) -> type[Record] | None:
    """The type of which a function is Record.at(); None for any other function."""
    return function.__self__ if getattr(function, "__func__", None) is Record.at.__func__ else None  # type: ignore[attr-defined]


def locate(builder: Any, kind: type[Record], address: Any, index: Value) -> RecordValue:
    """Record.at()."""
    offset = builder.mul(convert(builder, index, INT), ir.Constant(INT, kind.size()))
    return RecordValue(kind, builder.add(convert(builder, address, INT), offset))


def widen(builder: Any, value: Any, kind: Type) -> Any:
    """What an intrinsic returned or a field holds, as a type of the language."""
    wanted = kind.llvm if is_vector(kind.llvm) or kind.llvm in (BOOL, FLOAT, FLOAT32) else INT
    return convert(builder, value, wanted, kind.signed)
