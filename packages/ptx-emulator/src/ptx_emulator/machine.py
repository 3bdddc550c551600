"""Runs one program of a kernel: its threads in lockstep where they agree, in groups by address where they do
not.

The group that is furthest behind runs first, so groups meet again where their paths do. A program's threads
wait for one another at barriers; instructions of a warp ask that the whole warp is there.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx_emulator import instructions
from ptx_emulator.memory import MemoryFault
from ptx_emulator.parser import PtxError, PtxInstruction
from ptx_emulator.program import EmulatedProgram

Array = NDArray[Any]
Groups = dict[int, Array]
"""Which threads [count] go on at which instruction."""


class Fault(Exception):
    """A program did what is an error on a GPU, or undefined there. The message has the instruction."""


def run_program(program: EmulatedProgram) -> int:
    """Runs to the end of all threads. Returns the number of instructions."""
    code, count = program.kernel.code, 0
    ready: Groups = {0: np.ones(program.threads.count, np.bool_)}
    waiting: Groups = {}
    while ready or waiting:
        if not ready:  # all threads that live have come to a barrier
            ready, waiting = waiting, {}
            program.shared.barrier()
        at = min(ready)
        instruction = code[at]
        try:
            _step(program, instruction, at, ready, waiting)
        except (MemoryFault, PtxError) as error:
            raise Fault(f"{program.kernel.name}, instruction {at}: {instruction.text}: {error}") from error
        count += 1
    if any(program.products):
        raise Fault(f"{program.kernel.name}: a program ends before its products were waited for")
    return count


def _step(
    program: EmulatedProgram, instruction: PtxInstruction, at: int, ready: Groups, waiting: Groups
) -> None:
    """Runs one instruction for the threads that are there, and says where they go on."""
    here = ready.pop(at)
    chosen = here
    if instruction.guard:
        guard = program.threads.bits(instruction.guard)
        chosen = here & (~guard if instruction.negated else guard)
    match instruction.parts[0]:
        case "bra":
            _join(ready, program.kernel.labels[str(instruction.operands[0])], chosen)
            here = here & ~chosen
        case "ret" | "exit":
            here = here & ~chosen
        case "bar" | "barrier" if instruction.parts[1] != "warp":
            if instruction.operands != ("0",):
                raise PtxError("only barrier 0 of all threads is known")
            _join(waiting, at + 1, chosen)
            here = here & ~chosen
        case _ if chosen.all():
            instructions.execute(program, instruction, None)
        case _ if chosen.any():
            instructions.execute(program, instruction, chosen)
    _join(ready, at + 1, here)


def _join(groups: Groups, at: int, threads: Array) -> None:
    if threads.any():
        groups[at] = groups[at] | threads if at in groups else threads
