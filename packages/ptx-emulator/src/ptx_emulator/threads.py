"""The registers of a program's threads: one numpy array for each register, one lane for each thread."""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.parser import PtxError

Array = NDArray[Any]
BITS = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
DTYPES: dict[str, Any] = {
    "pred": np.bool_,
    **{f"{kind}{bits}": BITS[bits] for kind in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"int{bits}").type for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"float{bits}").type for bits in (16, 32, 64)},
    "bf16": np.uint16,
    "e4m3x2": np.uint16,
    "f16x2": np.uint32,
    "bf16x2": np.uint32,
    "s16x2": np.uint32,
    "f32x2": np.uint64,
}
"""How the bits of a register are read, by PTX type."""


class Threads:
    """Registers and special registers of `count` threads. Arrays are never changed in place, so they are
    shared.

    A register that nothing has written holds poison: the byte `poison`, repeated.
    """

    def __init__(
        self, count: int, widths: dict[str, int], poison: int, program: tuple[int, ...], grid: tuple[int, ...]
    ) -> None:
        self.count = count
        self.ids = np.arange(count, dtype=np.int32)
        self.in_flight: set[str] = set()  # registers that a product on its way will write
        self.held: set[str] = set()  # registers that a product on its way reads
        self._widths = widths
        self._poison = poison
        places, sizes = zip("xyz", program, strict=True), zip("xyz", grid, strict=True)
        self._values: dict[str, Array] = {
            "%tid.x": self.ids.astype(np.uint32),
            "%laneid": (self.ids % 32).astype(np.uint32),
            "%ntid.x": np.full(count, count, np.uint32),
            **{f"%ctaid.{axis}": np.full(count, at, np.uint32) for axis, at in places},
            **{f"%nctaid.{axis}": np.full(count, size, np.uint32) for axis, size in sizes},
        }

    def bits(self, name: str) -> Array:
        """Returns the register's bits: uint of its width [count], or bool of a predicate."""
        if name in self.in_flight:
            raise PtxError(f"{name} is read before the product that writes it was waited for")
        return self.peek(name)

    def peek(self, name: str) -> Array:
        """The bits, also of a register that a product on its way will write."""
        if name not in self._values:
            if name not in self._widths:
                raise PtxError(f"{name} is no register of this kernel")
            dtype: Any = BITS[self._widths[name]]
            raw = np.full(np.dtype(dtype).itemsize, self._poison, np.uint8)
            value = raw.view(dtype)[0] if dtype is not np.bool_ else bool(self._poison & 1)
            self._values[name] = np.full(self.count, value, dtype)
        return self._values[name]

    def read(self, operand: str, kind: str) -> Array:
        """Returns a register or an immediate as the PTX type `kind` [count]; a wider register's lower
        bits."""
        dtype = np.dtype(DTYPES[kind])
        if operand[0] != "%" and operand not in self._widths:
            return np.full(self.count, immediate(operand, dtype))
        found = self.bits(operand)
        if found.dtype == np.bool_ or dtype == np.bool_:
            return found.astype(dtype)
        if found.itemsize != dtype.itemsize:
            found = found.astype(f"u{dtype.itemsize}")
        return found.view(dtype)

    def write(self, name: str, value: Array, active: Array | None, signed: bool = False) -> None:
        """Sets the register of the active threads (None: of all). A narrower value is extended by zeros, or
        by its sign."""
        if name == "_":
            return
        width = self._widths.get(name)
        if width is None:
            raise PtxError(f"{name} is no register of this kernel")
        if name in self.in_flight or name in self.held:
            raise PtxError(f"{name} is written while a product on its way uses it")
        dtype: Any = np.dtype(BITS[width])
        if width > 1:
            unsigned = f"u{value.itemsize}"
            extended = value.astype(f"i{dtype.itemsize}") if signed else value.view(unsigned)
            value = extended.astype(dtype, copy=False) if not signed else extended.view(dtype)
        self._values[name] = value if active is None else np.where(active, value, self.bits(name))

    def land(self, name: str, value: Array, lanes: Array) -> None:
        """What a product has computed, uint32 [count], is in the register of these lanes."""
        before = self._values.get(name, value)
        self._values[name] = np.where(lanes, value, before)


def immediate(text: str, dtype: Any) -> Any:
    """0f3F800000 is a float32 by its bits, 0d... a float64; else an integer, which wraps to the width."""
    if text[:2] in ("0f", "0F"):
        value = struct.unpack(">f", bytes.fromhex(text[2:]))[0]
    elif text[:2] in ("0d", "0D"):
        value = struct.unpack(">d", bytes.fromhex(text[2:]))[0]
    else:
        number = int(text.rstrip("U"), 0)
        if dtype == np.bool_:
            return bool(number)
        if dtype.kind == "f":  # bits
            return np.array([number], f"i{dtype.itemsize}").view(dtype)[0]
        return np.array([number & (1 << (8 * dtype.itemsize)) - 1], f"u{dtype.itemsize}").view(dtype)[0]
    if dtype.kind == "f":
        return dtype.type(value)
    exact = np.float32(value) if text[1] in "fF" else np.float64(value)
    return np.array([exact]).view(f"u{exact.itemsize}").astype(f"u{dtype.itemsize}").view(dtype)[0]
