"""How many cycles a processor's units need for an iteration of a kernel's main loop, counted from its machine
code.

    work = unit_work(code)
    predict(work, warps=8, programs=2, card=CARDS["H200"]).limit

A prediction and no measurement: the rates are those of data sheets, units are taken to be always ready, and
what does not overlap is guessed from the number of programs. No card has said how far it is off. It is for
comparing variants of one kernel.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.triton.sass import Instruction, main_loop_code

_SCHEDULERS = 4
"""Of a processor; each starts one instruction of a warp per cycle."""
_SPECIAL_LANES = 16
_SHARED_BYTES = 128
"""Per cycle and processor."""
_LANES = 32
_WARPS_OF_A_GROUP = 4
_MMA = re.compile(r"HMMA\.(16816|1688)\b")
_WGMMA = re.compile(r"HGMMA\.(\d+)x(\d+)x(\d+)\b")
_WIDTH = re.compile(r"\.(U8|S8|U16|S16|64|128)\b")
_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


@dataclass(frozen=True)
class Card:
    """Rates of a GPU, from its data sheet."""

    capability: int
    processors: int
    clock: float  # GHz, boost
    flops: int  # per cycle and processor: dense bfloat16 products, summed in float32
    bandwidth: float  # of its memory, GB/s

    @property
    def memory_bytes(self) -> float:
        """Per cycle and processor."""
        return self.bandwidth / self.clock / self.processors


CARDS = {
    "A100": Card(80, 108, 1.41, 2048, 2039),
    "RTX 3090": Card(86, 82, 1.70, 512, 936),
    "L4": Card(89, 58, 2.04, 1024, 300),
    "H100": Card(90, 132, 1.83, 4096, 3350),
    "H200": Card(90, 132, 1.83, 4096, 4800),
    "RTX 5090": Card(120, 170, 2.41, 512, 1792),
}


@dataclass(frozen=True)
class UnitWork:
    """What one warp asks of each unit in an iteration."""

    instructions: int
    special: int  # of the special function units: exp2, reciprocals
    flops: int  # of the matrix units; those of a group of warps are shared by its four
    shared_bytes: int  # to and from shared memory, by threads, copies and the matrix units
    memory_bytes: int  # loaded from global memory


@dataclass(frozen=True)
class Prediction:
    """Cycles for an iteration of all programs on a processor."""

    units: dict[str, float]  # by unit, as if it were alone
    cycles: float
    flops: float  # that it computes

    @property
    def limit(self) -> str:
        """The unit that is busy all the time; "waits" where none is."""
        slowest = max(self.units, key=lambda unit: self.units[unit])
        return slowest if self.share(slowest) > 0.99 else "waits"

    def share(self, unit: str) -> float:
        """Of the time, the part in which a unit is busy."""
        return self.units[unit] / self.cycles


def unit_work(code: Sequence[Instruction]) -> UnitWork:
    """Counts the main loop of a kernel (kernels.triton.sass.main_loop_code)."""
    loop = main_loop_code(code)
    opcodes = [one.opcode for one in loop]
    return UnitWork(
        instructions=len(opcodes),
        special=sum(opcode.startswith("MUFU") for opcode in opcodes),
        flops=sum(map(_flops, opcodes)),
        shared_bytes=sum(map(_shared, loop)),
        memory_bytes=sum(_LANES * _bytes(opcode) for opcode in opcodes if opcode.startswith("LDG")),
    )


def _flops(opcode: str) -> int:
    if found := _MMA.match(opcode):
        return 2 * 16 * 8 * int(found[1][3:])
    if found := _WGMMA.match(opcode):
        rows, columns, depth = map(int, found.groups())
        return 2 * rows * columns * depth // _WARPS_OF_A_GROUP
    return 0


def _bytes(opcode: str) -> int:
    """That one thread moves: LDG.E.128 has 16."""
    found = _WIDTH.search(opcode)
    return _BYTES[found[1]] if found else 0 if opcode.startswith("LDGDEPBAR") else 4


def _shared(one: Instruction) -> int:
    """Bytes of shared memory that an instruction of one warp touches."""
    if one.opcode.startswith(("LDSM", "STSM")):  # matrices of 8 rows of 16 bytes
        count = re.search(r"\.([124])$", one.opcode)
        return 8 * 16 * int(count[1] if count else 1)
    if found := _WGMMA.match(one.opcode):
        rows, columns, depth = map(int, found.groups())
        left = 0 if re.match(r"R\d+, R\d+, gdesc", one.operands) else rows
        return 2 * (left + columns) * depth // _WARPS_OF_A_GROUP
    if one.opcode.startswith(("LDS", "STS", "LDGSTS")):
        return _LANES * _bytes(one.opcode)
    return 0


def predict(work: UnitWork, warps: int, programs: int, card: Card) -> Prediction:
    """warps: of a program. programs: that fit on a processor at a time.

    Memory overlaps with everything, since copies run ahead. Between two barriers the other units of one
    program wait for one another; those of several programs fill each other's gaps.
    """
    count = warps * programs
    units = {
        "issue": count * work.instructions / _SCHEDULERS,
        "special": count * work.special * _LANES / _SPECIAL_LANES,
        "matrix": count * work.flops / card.flops,
        "shared": count * work.shared_bytes / _SHARED_BYTES,
        "memory": count * work.memory_bytes / card.memory_bytes,
    }
    computing = [cycles for unit, cycles in units.items() if unit != "memory"]
    most = max(computing)
    return Prediction(
        units, max(units["memory"], most + (sum(computing) - most) / programs), count * work.flops
    )
