"""Loads, stores and atomic operations of single threads."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator.parser import Address, Operand, PtxError, PtxInstruction, RegisterList
from ptx_emulator.program import EmulatedProgram
from ptx_emulator.threads import DTYPES

Array = NDArray[Any]


def addresses(program: EmulatedProgram, operand: Operand, active: Array | None) -> Array:
    """The address of each active thread: uint64."""
    if not isinstance(operand, Address):
        raise PtxError(f"{operand} is no address")
    if operand.base == "global_smem":
        base = np.zeros(program.threads.count, np.int64)
    else:
        base = program.threads.bits(operand.base).astype(np.int64)
    found = (base + operand.offset).astype(np.uint64)
    return found if active is None else found[active]


def load(program: EmulatedProgram, instruction: PtxInstruction, active: Array | None) -> None:
    """ld.param, ld.global, ld.shared, of up to four values."""
    space, kind = instruction.parts[1], instruction.parts[-1]
    destination, source = instruction.operands
    names = destination.names if isinstance(destination, RegisterList) else (str(destination),)
    dtype = np.dtype(DTYPES[kind])
    if space == "param":
        _load_parameter(program, names[0], source, dtype)
        return
    where = addresses(program, source, active)
    size = dtype.itemsize * len(names)
    if space == "global":
        found = program.memory.load(where, size, program.number)
    elif space == "shared":
        found = program.shared.load(where, size, program.active_threads(active))
    else:
        raise PtxError(f"loads from {space} are not known")
    columns = np.ascontiguousarray(found).view(dtype)
    for column, name in enumerate(names):
        value = spread(columns[:, column], active, program.threads.count)
        program.threads.write(name, value, active, signed=kind[0] == "s")


def spread(values: Array, active: Array | None, count: int) -> Array:
    """Values of the active threads, as values of all."""
    if active is None:
        return np.ascontiguousarray(values)
    out = np.zeros(count, values.dtype)
    out[active] = values
    return out


def _load_parameter(program: EmulatedProgram, name: str, source: Operand, dtype: np.dtype[Any]) -> None:
    if not isinstance(source, Address) or source.base not in program.parameters:
        raise PtxError(f"{source} is no parameter")
    given = program.parameters[source.base]
    if isinstance(given, float):
        raw = np.float32(given).tobytes()
    else:
        raw = (given & (1 << 64) - 1).to_bytes(8, "little")
    value = np.frombuffer(raw[: dtype.itemsize].ljust(dtype.itemsize, b"\0"), dtype)[0]
    whole = np.full(program.threads.count, value, dtype)
    program.threads.write(name, whole, None, signed=dtype.kind == "i")


def store(program: EmulatedProgram, instruction: PtxInstruction, active: Array | None) -> None:
    """st.global, st.shared, of up to four values."""
    space, kind = instruction.parts[1], instruction.parts[-1]
    destination, source = instruction.operands
    names = source.names if isinstance(source, RegisterList) else (str(source),)
    columns = [program.threads.read(name, kind) for name in names]
    stacked = np.ascontiguousarray(np.stack(columns, axis=1)).view(np.uint8)
    values = stacked if active is None else stacked[active]
    where = addresses(program, destination, active)
    if space == "global":
        program.memory.store(where, values, program.number)
    elif space == "shared":
        program.shared.store(where, values, program.active_threads(active))
    else:
        raise PtxError(f"stores to {space} are not known")


_ATOMIC: dict[str, Callable[[int, int], int]] = {
    "add": lambda old, value: old + value,
    "or": lambda old, value: old | value,
    "max": max,
    "min": min,
    "exch": lambda _, value: value,
}


def atomic(program: EmulatedProgram, instruction: PtxInstruction, active: Array | None) -> None:
    """atom.global on integers: threads in ascending order."""
    change, kind = _ATOMIC.get(instruction.parts[-2]), instruction.parts[-1]
    if instruction.parts[1] != "global" or change is None or kind[0] not in "bsu":
        raise PtxError("this atomic operation is not known")
    destination, target, operand = instruction.operands
    values = program.threads.read(str(operand), kind)
    chosen = values if active is None else values[active]
    limit = (1 << 8 * chosen.itemsize) - 1
    negative = limit // 2 + 1 if kind[0] == "s" else 0

    def update(lane: int, old: int) -> int:
        return ((change(old, int(chosen[lane])) + negative) & limit) - negative

    old = program.memory.update(addresses(program, target, active), update, chosen.dtype)
    program.threads.write(str(destination), spread(old, active, program.threads.count), active)
