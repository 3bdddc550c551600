"""What a compiled kernel does in its main loop, read from the machine code (SASS).

    code = parse(disassemble(cubin))
    main_loop(code).instructions, hazards(code)

The main loop of a kernel that multiplies matrices is the innermost loop with most products, and of such the
shortest: a kernel has one loop for tiles that need no mask, and a longer one for those that do. Of another
kernel it is the innermost loop with most loads, and of such the longest; without a loop, the kernel itself.
Imports triton for the folder of its tools alone.
"""

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

import triton

_LINE = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_PRODUCTS = re.compile(r"(HGMMA|IGMMA|QGMMA|HMMA|IMMA|QMMA|OMMA|DMMA|UTC[A-Z]*MMA)\b")
_COPIES = re.compile(r"LDGSTS|UTMALDG|UBLKCP")
_LOADS = re.compile(r"LDG\b|LDGSTS|UTMALDG|UBLKCP")
_WAITS = re.compile(r"DEPBAR|SYNCS\.PHASECHK")
_PRODUCT_WAIT = "WARPGROUP.DEPBAR"


@dataclass(frozen=True)
class Instruction:
    """One line of a disassembly."""

    opcode: str  # with its modifiers: LDGSTS.E.BYPASS.128
    operands: str
    predicate: str  # "", P0, !P0, UP0, ...
    labels: tuple[str, ...]  # of the place before it

    @property
    def target(self) -> str:
        """The label that it branches to; "": none."""
        found = _TARGET.search(self.operands) if self.opcode.startswith("BRA") else None
        return found[1] if found else ""

    @property
    def always_leaves(self) -> bool:
        """Whether the next instruction is never executed after it."""
        conditional = self.predicate or re.match(r"!?U?P\d", self.operands)
        return self.opcode.startswith(("BRA", "EXIT", "RET")) and not conditional


@dataclass(frozen=True)
class MainLoop:
    """Counts of instructions per iteration, for one warp: an iteration computes a tile."""

    instructions: int
    products: int  # of matrices
    product_waits: int  # waits for wgmma; as many as products: they are serialized
    waits: int  # for asynchronous copies and products
    copies: int  # asynchronous, to shared memory
    copy_bytes: int  # per thread, of the narrowest of them
    barriers: int  # of the whole program
    special: int  # special functions, such as exp2
    doubles: int  # float64 arithmetic
    spills: int  # loads and stores of local memory


def disassemble(cubin: bytes) -> str:
    """Returns the machine code of all functions in an object file, as nvdisasm prints it."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout


def parse(text: str) -> list[Instruction]:
    """Returns the instructions in order. text: of disassemble()."""
    found: list[Instruction] = []
    labels: tuple[str, ...] = ()
    for line in text.splitlines():
        if named := _LABEL.match(line):
            labels += (named[1],)
        elif read := _LINE.match(line):
            predicate, opcode, operands = read.groups()
            found.append(Instruction(opcode, operands, predicate or "", labels))
            labels = ()
    return found


def _places(code: Sequence[Instruction]) -> dict[str, int]:
    """Returns the index of each label's instruction."""
    return {label: at for at, one in enumerate(code) for label in one.labels}


def loops(code: Sequence[Instruction]) -> list[range]:
    """Returns the indexes of the instructions of each loop: from the target of a backward branch to it. A
    branch to itself, which stands behind a kernel's end, is none."""
    places = _places(code)
    ends = ((places.get(one.target, at), at) for at, one in enumerate(code) if one.target)
    return [range(begin, end + 1) for begin, end in ends if begin < end]


def main_loop(code: Sequence[Instruction]) -> MainLoop:
    """Returns the counts of the loop that the kernel is about, as the module's docstring defines it."""
    return _describe(main_loop_code(code))


def main_loop_code(code: Sequence[Instruction]) -> Sequence[Instruction]:
    """Returns the instructions of that loop."""
    found = loops(code)
    by_products = [
        (_count(code, loop, _PRODUCTS), -len(loop), loop) for loop in _innermost(code, found, _PRODUCTS)
    ]
    by_loads = [(_count(code, loop, _LOADS), len(loop), loop) for loop in _innermost(code, found, _LOADS)]
    if chosen := by_products or by_loads:
        loop = max(chosen, key=lambda entry: entry[:2])[2]
        return [code[at] for at in loop]
    return code


def _count(code: Sequence[Instruction], loop: range, what: re.Pattern[str]) -> int:
    return sum(bool(what.match(code[at].opcode)) for at in loop)


def _innermost(code: Sequence[Instruction], found: list[range], what: re.Pattern[str]) -> list[range]:
    """Loops that have such instructions, and no loop in them that has."""
    with_it = [loop for loop in found if _count(code, loop, what)]

    def holds_another(loop: range) -> bool:
        return any(
            other != loop and loop.start <= other.start and other.stop <= loop.stop for other in with_it
        )

    return [loop for loop in with_it if not holds_another(loop)]


def _describe(code: Sequence[Instruction]) -> MainLoop:
    opcodes = [one.opcode for one in code]

    def count(*starts: str) -> int:
        return sum(opcode.startswith(starts) for opcode in opcodes)

    copies = [opcode for opcode in opcodes if _COPIES.match(opcode)]
    return MainLoop(
        instructions=len(code),
        products=sum(bool(_PRODUCTS.match(opcode)) for opcode in opcodes),
        product_waits=count(_PRODUCT_WAIT),
        waits=sum(bool(_WAITS.search(opcode)) and "LDGDEPBAR" not in opcode for opcode in opcodes),
        copies=len(copies),
        copy_bytes=min(map(_width, copies), default=0),
        barriers=count("BAR."),
        special=count("MUFU"),
        doubles=count("DFMA", "DADD", "DMUL", "DSETP", "DMNMX"),
        spills=count("LDL", "STL"),
    )


def _width(opcode: str) -> int:
    """Bytes of an asynchronous copy; bulk copies, of which one moves a whole tile, count as 16."""
    bits = re.search(r"\.(64|128)\b", opcode)
    return int(bits[1]) // 8 if bits else 4 if opcode.startswith("LDGSTS") else 16


_NO_DESTINATION = re.compile(
    r"U|HGMMA|ST|LDGSTS|BAR|BRA|EXIT|WARPGROUP|DEPBAR|LDGDEPBAR|[IFD]SETP|R2UR|MEMBAR|FENCE|ERRBAR|CCTL|NOP"
    r"|PLOP|BSSY|BSYNC|WARPSYNC|CALL|RET|RED|SYNCS|VOTE"
)
_REGISTER_A = re.compile(r"R(\d+), R(\d+), gdesc")


def hazards(code: Sequence[Instruction]) -> list[str]:
    """Returns writes to registers that a product in flight still reads.

    A wgmma whose left operand is in four registers reads them until the wait for its group. An assembler that
    writes one of them before that makes wrong numbers; those before 13.3 are reported to (triton-lang/triton,
    issue 9433). Every path from the product to a wait is followed.
    """
    places = _places(code)
    found = []
    for at, one in enumerate(code):
        operands = _REGISTER_A.match(one.operands) if one.opcode.startswith("HGMMA") else None
        if operands:
            first = int(operands[2])
            reads = range(first, first + 4)
            for other in _until_wait(code, at + 1, places):
                if written := set(_written(code[other])) & set(reads):
                    registers = ", ".join(f"R{number}" for number in sorted(written))
                    found.append(f"{code[other].opcode} writes {registers}, which {one.opcode} still reads")
    return found


def _until_wait(code: Sequence[Instruction], begin: int, places: dict[str, int]) -> Iterator[int]:
    """Yields the instructions that may be executed before a wait for products, each once."""
    work, seen = [begin], set[int]()
    while work:
        at = work.pop()
        while at < len(code) and at not in seen:
            seen.add(at)
            one = code[at]
            if one.opcode.startswith(_PRODUCT_WAIT):
                break
            yield at
            if one.target in places:
                work.append(places[one.target])
            if one.always_leaves:
                break
            at += 1


def _written(one: Instruction) -> range:
    """Returns the numbers of the registers that an instruction writes."""
    register = re.match(r"R(\d+)\b", one.operands)
    if register is None or _NO_DESTINATION.match(one.opcode):
        return range(0)
    wide, quad = re.search(r"\.(WIDE|64)\b", one.opcode), re.search(r"\.128\b|LDSM.*\.4\b", one.opcode)
    count = 4 if quad else 2 if wide or one.opcode.startswith("D") else 1
    return range(int(register[1]), int(register[1]) + count)
