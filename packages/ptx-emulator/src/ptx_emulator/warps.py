"""Instructions that a whole warp runs together: shuffles, reductions, matrices of 8 x 8, mma."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator import products
from ptx_emulator.memory import OWNER
from ptx_emulator.parser import PtxError, PtxInstruction, RegisterList
from ptx_emulator.products import WARP
from ptx_emulator.program import EmulatedProgram
from ptx_emulator.transfers import addresses

Array = NDArray[Any]
_LANE = np.arange(WARP)
_REDUCE: dict[str, Callable[..., Array]] = {
    "add": np.sum,
    "min": np.fmin.reduce,
    "max": np.fmax.reduce,
}
_CLAMP = {"bfly": 31, "idx": 31, "up": 0, "down": 31}
"""What the fourth operand of a shuffle is where all 32 lanes are one segment."""


def whole_warps(program: EmulatedProgram, active: Array | None) -> Array:
    """The numbers of the warps that run an instruction; a warp of which only some threads do is an error."""
    if active is None:
        return np.arange(program.threads.count // WARP)
    counts = active.reshape(-1, WARP).sum(axis=1)
    if ((counts != 0) & (counts != WARP)).any():
        raise PtxError("only some threads of a warp have come to an instruction of the whole warp")
    return np.flatnonzero(counts)


def barrier(program: EmulatedProgram, instruction: PtxInstruction, active: Array | None) -> None:
    """bar.warp.sync: what a thread of the warp has written to shared memory the others see."""
    if instruction.operands != ("-1",):
        raise PtxError("only barriers of all threads of a warp are known")
    program.shared.warp_barrier(whole_warps(program, active))


def shuffle(program: EmulatedProgram, instruction: PtxInstruction, active: Array | None) -> None:
    """shfl.sync: bfly, idx, up, down, among the 32 lanes of a warp."""
    whole_warps(program, active)
    destination, source, offset, clamp, mask = map(str, instruction.operands)
    threads, mode = program.threads, instruction.parts[2]
    if mode not in _CLAMP:
        raise PtxError(f"shfl.{mode} is not known")
    if int(clamp, 0) != _CLAMP[mode] or int(mask, 0) & 0xFFFFFFFF != 0xFFFFFFFF:
        raise PtxError("shuffles within parts of a warp are not known")
    values = threads.read(source, "b32").reshape(-1, WARP)
    by = threads.read(offset, "s32").reshape(-1, WARP)
    match mode:
        case "bfly":
            lane = _LANE ^ by
        case "idx":
            lane = by & 31
        case "up":
            lane = np.where(_LANE - by < 0, _LANE, _LANE - by)
        case _:
            lane = np.where(_LANE + by > 31, _LANE, _LANE + by)
    moved = np.take_along_axis(values, lane, axis=1)
    threads.write(destination, moved.reshape(-1), active)


def reduce(program: EmulatedProgram, instruction: PtxInstruction, active: Array | None) -> None:
    """redux.sync over all lanes of a warp."""
    whole_warps(program, active)
    destination, source, mask = map(str, instruction.operands)
    if (program.threads.read(mask, "u32") != 0xFFFFFFFF).any():
        raise PtxError("reductions of some lanes are not known")
    kind, change = instruction.parts[-1], _REDUCE.get(instruction.parts[2])
    if change is None or len(instruction.parts) != 4:
        raise PtxError("this reduction is not known")
    lanes = program.threads.read(source, kind).reshape(-1, WARP)
    result = change(lanes, axis=1).astype(lanes.dtype)
    program.threads.write(destination, np.repeat(result, WARP), active)


def _row_addresses(
    program: EmulatedProgram, instruction: PtxInstruction, matrix: int, warps: Array, operand: int
) -> Array:
    """The lanes 8 n to 8 n + 7 have the addresses of the rows of matrix n. Returns [warps * 8]."""
    every = addresses(program, instruction.operands[operand], None).reshape(-1, WARP)
    return every[warps, 8 * matrix : 8 * matrix + 8].reshape(-1)


def _matrix_names(instruction: PtxInstruction, operand: int) -> tuple[str, ...]:
    group = instruction.operands[operand]
    if not isinstance(group, RegisterList):
        raise PtxError("a list of registers is missing")
    return group.names


def load_matrices(program: EmulatedProgram, instruction: PtxInstruction, active: Array | None) -> None:
    """ldmatrix of 16-bit values: 1, 2 or 4 matrices, as they are or transposed."""
    warps = whole_warps(program, active)
    for n, name in enumerate(_matrix_names(instruction, 0)):
        where = _row_addresses(program, instruction, n, warps, 1)
        rows = program.shared.load(where, 16, np.repeat(warps, 8).astype(np.int32) + OWNER)
        matrices = np.ascontiguousarray(rows).view(np.uint16).reshape(-1, 8, 8)
        found = products.fragments(matrices, "trans" in instruction.parts)
        out = np.zeros((program.threads.count // WARP, WARP), np.uint32)
        out[warps] = found.reshape(-1, WARP)
        program.threads.write(name, out.reshape(-1), active)


def store_matrices(program: EmulatedProgram, instruction: PtxInstruction, active: Array | None) -> None:
    """stmatrix of 16-bit values: as they are or transposed."""
    warps = whole_warps(program, active)
    for n, name in enumerate(_matrix_names(instruction, 1)):
        register = program.threads.read(name, "b32").reshape(-1, WARP)[warps]
        matrices = products.matrix_rows(register.reshape(-1))
        rows = (np.swapaxes(matrices, -1, -2) if "trans" in instruction.parts else matrices).reshape(-1, 8)
        where = _row_addresses(program, instruction, n, warps, 0)
        owners = np.repeat(warps, 8).astype(np.int32) + OWNER
        program.shared.store(where, np.ascontiguousarray(rows).view(np.uint8), owners)


def product(program: EmulatedProgram, instruction: PtxInstruction, active: Array | None) -> None:
    """mma of 16 x 8 and k of 16, in bfloat16 or float16, summed in float32."""
    shape, kind = instruction.parts[3], instruction.parts[7]
    if shape != "m16n8k16" or kind not in ("bf16", "f16") or instruction.parts[6] != "f32":
        raise PtxError("this mma is not known")
    whole_warps(program, active)
    registers = [
        [program.threads.read(name, "b32") for name in _matrix_names(instruction, operand)]
        for operand in (1, 2, 3)
    ]
    left = products.values(products.left_matrix(registers[0]), kind)
    right = products.values(products.right_matrix(registers[1]), kind)
    start = products.accumulators(registers[2])
    result = products.multiply(left, right, start, products.tensor_core(program.kernel.target))
    for name, value in zip(
        _matrix_names(instruction, 0), products.accumulator_registers(result), strict=True
    ):
        program.threads.write(name, value, active)
