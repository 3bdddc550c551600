"""Executes instructions: finds what an opcode does, once, and does it for the active threads."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator import arithmetic, asynchronous, transfers, warps
from ptx_emulator.parser import PtxError, PtxInstruction, RegisterList
from ptx_emulator.program import EmulatedProgram

Array = NDArray[Any]
Executor = Callable[[EmulatedProgram, PtxInstruction, Array | None], None]
_EXECUTORS: dict[str, Executor] = {
    "ld": transfers.load,
    "st": transfers.store,
    "atom": transfers.atomic,
    "bar": warps.barrier,  # of warps; those of all threads are the machine's
    "shfl": warps.shuffle,
    "redux": warps.reduce,
    "ldmatrix": warps.load_matrices,
    "stmatrix": warps.store_matrices,
    "mma": warps.product,
    "cp": asynchronous.copy,
    "wgmma": asynchronous.product,
    "fence": asynchronous.fence,
}


def execute(program: EmulatedProgram, instruction: PtxInstruction, active: Array | None) -> None:
    """Runs one instruction for the active threads (bool [threads], or None: all)."""
    executor = _EXECUTORS.get(instruction.parts[0])
    if executor is not None:
        executor(program, instruction, active)
    elif instruction.parts[0] == "mov" and any(
        isinstance(each, RegisterList) for each in instruction.operands
    ):
        _move_parts(program, instruction, active)
    else:
        _compute(program, instruction, active)


def _compute(program: EmulatedProgram, instruction: PtxInstruction, active: Array | None) -> None:
    """What has one result, of registers and immediates."""
    threads = program.threads
    operation = arithmetic.find(instruction.parts)
    destination, *sources = instruction.operands
    if instruction.parts[0] == "mov" and sources == ["global_smem"]:
        threads.write(str(destination), np.zeros(threads.count, np.uint32), active)
        return
    last = len(operation.sources) - 1
    values = [threads.read(str(each), operation.sources[min(n, last)]) for n, each in enumerate(sources)]
    result = operation.compute(*values)
    threads.write(str(destination), result, active, signed=operation.result[0] == "s")


def _move_parts(program: EmulatedProgram, instruction: PtxInstruction, active: Array | None) -> None:
    """mov of a register into its parts, or of parts into a register; the first part is the lowest."""
    destination, source = instruction.operands
    threads, bits = program.threads, int(instruction.parts[1][1:])
    if isinstance(destination, RegisterList):
        part = bits // len(destination.names)
        whole = threads.read(str(source), f"b{bits}")
        for n, name in enumerate(destination.names):
            threads.write(name, (whole >> whole.dtype.type(n * part)).astype(f"u{part // 8}"), active)
    elif isinstance(source, RegisterList):
        part = bits // len(source.names)
        pieces = [threads.read(name, f"b{part}") for name in source.names]
        joined = np.ascontiguousarray(np.stack(pieces, axis=1)).view(f"u{bits // 8}")
        threads.write(str(destination), joined.reshape(-1), active)
    else:
        raise PtxError("a move without parts")
