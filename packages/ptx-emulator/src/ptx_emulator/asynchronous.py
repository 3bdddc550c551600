"""What lands later than it is begun: cp.async and wgmma, and the fences between them and threads."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator import products
from ptx_emulator.memory import OWNER, MemoryFault
from ptx_emulator.parser import PtxError, PtxInstruction, RegisterList
from ptx_emulator.program import Copy, EmulatedProgram, Product
from ptx_emulator.transfers import addresses

Array = NDArray[Any]
GROUP = 128
"""Threads of a group of warps."""


def copy(program: EmulatedProgram, instruction: PtxInstruction, active: Array | None) -> None:
    """cp.async of 4, 8 or 16 bytes, and its groups."""
    match instruction.parts[2]:
        case "commit_group":
            program.copy_groups = program.copy_groups + (1 if active is None else active.astype(np.int64))
        case "wait_group":
            _land(program, active, int(str(instruction.operands[0])))
        case "wait_all":
            program.copy_groups = program.copy_groups + 1
            _land(program, active, 0)
        case "ca" | "cg":
            _begin(program, instruction, active)
        case other:
            raise PtxError(f"cp.async.{other} is not known")


def _begin(program: EmulatedProgram, instruction: PtxInstruction, active: Array | None) -> None:
    target, source, size = instruction.operands[:3]
    width, threads = int(str(size), 0), program.active_threads(active)
    read = np.full(program.threads.count, width, np.int64)
    if len(instruction.operands) > 3:
        read = program.threads.read(str(instruction.operands[3]), "u32").astype(np.int64)
    index = program.shared.begin_copy(addresses(program, target, active), width, threads)
    sources = addresses(program, source, active)
    program.copies.append(Copy(threads, index, sources, read[threads], program.copy_groups[threads]))


def _land(program: EmulatedProgram, active: Array | None, pending: int) -> None:
    """All but the last `pending` groups of each active thread."""
    waits = np.zeros(program.threads.count, np.bool_)
    waits[program.active_threads(active)] = True
    left: list[Copy] = []
    for each in program.copies:
        done = waits[each.threads] & (each.group < program.copy_groups[each.threads] - pending)
        if done.any():
            _finish(program, each, done)
        if not done.all():
            keep = ~done
            left.append(Copy(*(part[keep] for part in vars(each).values())))
    program.copies = left


def _finish(program: EmulatedProgram, each: Copy, done: Array) -> None:
    width = each.index.shape[1]
    values = np.zeros((int(done.sum()), width), np.uint8)
    sources, read = each.sources[done], each.read[done]
    if (read > width).any() or (sources[read > 0] % np.uint64(width)).any():
        raise MemoryFault(f"a copy of {width} bytes is misaligned, or reads more than it copies")
    for size in map(int, np.unique(read[read > 0])):
        rows, piece = np.flatnonzero(read == size), size & -size
        for at in range(0, size, piece):
            where = sources[rows] + np.uint64(at)
            values[rows, at : at + piece] = program.memory.load(where, piece, program.number)
    program.shared.land(each.index[done], values, each.threads[done])


def fence(program: EmulatedProgram, instruction: PtxInstruction, active: Array | None) -> None:
    """fence.proxy.async: what threads have written is there for wgmma."""
    if instruction.parts[1:3] == ("proxy", "async"):
        program.shared.fence(program.active_threads(active))


def product(program: EmulatedProgram, instruction: PtxInstruction, active: Array | None) -> None:
    """wgmma: a product of 64 rows by a group of four warps, and its groups."""
    groups = _whole_groups(program, active)
    match instruction.parts[1]:
        case "fence":
            return
        case "commit_group":
            for group in groups:
                for each in program.products[group]:
                    each.batch = each.batch if each.batch >= 0 else program.batches[group]
                program.batches[group] += 1
        case "wait_group":
            for group in groups:
                _wait(program, group, int(str(instruction.operands[0])))
        case "mma_async":
            for group in groups:
                _start(program, instruction, group)
        case other:
            raise PtxError(f"wgmma.{other} is not known")


def _whole_groups(program: EmulatedProgram, active: Array | None) -> list[int]:
    if active is None:
        return list(range(program.threads.count // GROUP))
    counts = active.reshape(-1, GROUP).sum(axis=1)
    if ((counts != 0) & (counts != GROUP)).any():
        raise PtxError("only some threads of a group of warps have come to wgmma")
    return [int(group) for group in np.flatnonzero(counts)]


def _start(program: EmulatedProgram, instruction: PtxInstruction, group: int) -> None:
    destination, left, right, scale, *options = instruction.operands
    names, kind = _names(destination), instruction.parts[-1]
    shape = instruction.parts[4]
    if instruction.parts[5] != "f32" or not shape.startswith("m64n") or not shape.endswith("k16"):
        raise PtxError("this wgmma is not known")
    if any(str(option) != "1" for option in options[:2]):
        raise PtxError("wgmma with negated operands is not known")
    columns = int(shape[4:-3])
    lanes = slice(group * GROUP, (group + 1) * GROUP)
    transposed = [str(option) == "1" for option in options[2:]]
    operands = _Operands(program, group)
    a: Array
    if isinstance(left, RegisterList):
        registers = [program.threads.read(name, "b32")[lanes] for name in left.names]
        a = products.left_matrix(registers).reshape(64, 16)
    else:
        a = operands.read(_descriptor(program, left, lanes), 64, transposed.pop(0))
    b = operands.read(_descriptor(program, right, lanes), columns, transposed.pop(0))
    start = _accumulators(program, group, names, lanes)
    if not bool(program.threads.read(str(scale), "pred")[lanes.start]):
        start = np.zeros_like(start)
    core = products.tensor_core(program.kernel.target)
    result = products.multiply(products.values(a, kind), products.values(b, kind).T, start, core)
    held = left.names if isinstance(left, RegisterList) else ()
    values = products.accumulator_registers(result.reshape(4, 16, columns))
    program.products[group].append(Product(names, held, values, operands.check))
    program.threads.in_flight.update(names)
    program.threads.held.update(held)


def _names(operand: object) -> tuple[str, ...]:
    if not isinstance(operand, RegisterList):
        raise PtxError("a list of registers is missing")
    return operand.names


def _descriptor(program: EmulatedProgram, operand: object, lanes: slice) -> int:
    """What describes a matrix in shared memory: the same in all threads of the group."""
    values = program.threads.read(str(operand), "b64")[lanes]
    if (values != values[0]).any():
        raise PtxError("threads of one group of warps have different descriptors")
    return int(values[0])


def _accumulators(program: EmulatedProgram, group: int, names: tuple[str, ...], lanes: slice) -> Array:
    """What a product adds to: the result of the one before, which may not have landed. float32 [64,
    columns]."""
    for each in reversed(program.products[group]):
        if each.registers == names:
            registers = each.results
            break
        if set(each.registers) & set(names):
            raise PtxError("products on their way share some of their registers")
    else:
        registers = [program.threads.peek(name)[lanes] for name in names]  # another group's are on their way
    return products.accumulators(registers).reshape(64, -1)


class _Operands:
    """The matrices that a product reads from shared memory: when it starts, and again when it was waited
    for."""

    def __init__(self, program: EmulatedProgram, group: int) -> None:
        self._shared = program.shared
        self._owner = 2 * OWNER + group
        self._seen: list[tuple[Array, Array]] = []

    def read(self, descriptor: int, rows: int, transposed: bool) -> Array:
        """Returns uint16 [rows, 16]."""
        first = products.descriptor_bytes(descriptor, rows, 16, transposed)
        index = first[..., None] + np.arange(2)
        if index.min() < 0 or index.max() >= len(self._shared.data):
            raise MemoryFault("a product reads outside of shared memory")
        found = np.ascontiguousarray(self._shared.product_reads(index, self._owner))
        self._seen.append((index, found))
        return found.view(np.uint16)[..., 0]

    def check(self) -> None:
        """Raises if a byte has changed since it was read."""
        for index, found in self._seen:
            if (self._shared.data[index] != found).any():
                raise MemoryFault("shared memory was written while wgmma may still read it")


def _wait(program: EmulatedProgram, group: int, pending: int) -> None:
    """All but the last `pending` batches of the group have landed."""
    done = [each for each in program.products[group] if 0 <= each.batch < program.batches[group] - pending]
    program.products[group] = [each for each in program.products[group] if each not in done]
    lanes = np.zeros(program.threads.count, np.bool_)
    lanes[group * GROUP : (group + 1) * GROUP] = True
    still = [each for group_products in program.products for each in group_products]
    program.threads.in_flight = {name for each in still for name in each.registers}
    program.threads.held = {name for each in still for name in each.held}
    for each in done:
        each.check()
    for each in {each.registers: each for each in done}.values():  # the last one of a chain
        for name, value in zip(each.registers, each.results, strict=True):
            whole = np.zeros(program.threads.count, np.uint32)
            whole[lanes] = value
            program.threads.land(name, whole, lanes)
