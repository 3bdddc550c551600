"""Reads the PTX of one kernel, as Triton's back end writes it: instructions, labels, parameters,
registers."""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

_COMMENT = re.compile(r"//[^\n]*")
_PARAMETER = re.compile(r"\.param\s+\.(\w+)(?:\s+\.ptr\s+\.global\s+\.align\s+\d+)?\s+(\w+)")
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+([^;]+);")
_GUARD = re.compile(r"@(!?)(%?\w+)\s+(.*)", re.DOTALL)
_HEAD = re.compile(r"(?:([$\w]+):(?!:)|[{}])\s*")
"""What comes before an instruction: a label, or the brace of a scope. No instruction begins with a vector."""
_RANGE = re.compile(r"(%?\w+)<(\d+)>")
_BITS = {"pred": 1, "b8": 8, "b16": 16, "f16": 16, "b32": 32, "f32": 32, "b64": 64, "f64": 64}
_SPACE = re.compile(r"\s+")


class PtxError(Exception):
    """The code is not what this emulator can read or run; the message has the instruction."""


class Address(NamedTuple):
    """[base + offset]: base is a register, a parameter or a variable."""

    base: str
    offset: int


class RegisterList(NamedTuple):
    """{a, b, c}: registers that make up a vector."""

    names: tuple[str, ...]


Operand = str | Address | RegisterList


@dataclass(frozen=True)
class PtxInstruction:
    """One instruction: opcode `add.s32` has the parts ("add", "s32")."""

    text: str
    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: str = ""  # the predicate register that has to be true
    negated: bool = False  # ... or false


@dataclass
class Kernel:
    """An entry of PTX: its code, and what its labels and registers are."""

    name: str
    target: int  # 80, 90, ...
    threads: int
    parameters: list[tuple[str, str]]  # (name, type) as in the declaration
    registers: dict[str, int]  # bits by name
    code: list[PtxInstruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # the index in code


def parse(ptx: str) -> Kernel:
    """Reads a module with one entry. Raises PtxError at what is none of PTX as Triton writes it."""
    text = _COMMENT.sub("", ptx)
    entry = re.search(r"\.entry\s+(\w+)\s*\(([^)]*)\)", text)
    target = re.search(r"\.target\s+sm_(\d+)", text)
    threads = re.search(r"\.reqntid\s+(\d+)", text)
    if entry is None or target is None or threads is None:
        raise PtxError("no entry, target or number of threads in this PTX")
    parameters = [(name, kind) for kind, name in _PARAMETER.findall(entry[2])]
    body = text[text.index("{", threads.end()) + 1 :]
    kernel = Kernel(entry[1], int(target[1]), int(threads[1]), parameters, _declared(body))
    for statement in _statements(body):
        while head := _HEAD.match(statement):
            if head[1]:
                kernel.labels[head[1]] = len(kernel.code)
            statement = statement[head.end() :]
        if statement and not statement.startswith("."):
            kernel.code.append(_instruction(statement))
    return kernel


def _declared(body: str) -> dict[str, int]:
    """The bits of each register. Blocks of inline assembly declare their own, whose names may return."""
    registers: dict[str, int] = {}
    for kind, names in _REGISTERS.findall(body):
        for name in names.replace(" ", "").split(","):
            several = _RANGE.fullmatch(name)
            for each in [f"{several[1]}{n}" for n in range(int(several[2]))] if several else [name]:
                registers[each] = _BITS[kind]
    return registers


def _statements(body: str) -> list[str]:
    """Splits at semicolons."""
    end = body.find(".section")
    lines = [line for line in body[: end if end >= 0 else None].splitlines() if not _directive(line)]
    pieces = "\n".join(lines).split(";")
    return [statement for piece in pieces if (statement := _SPACE.sub(" ", piece).strip())]


def _directive(line: str) -> bool:
    return line.strip().startswith((".loc", ".pragma", ".file"))


def _instruction(statement: str) -> PtxInstruction:
    guard, negated, rest = "", False, statement
    if match := _GUARD.match(statement):
        negated, guard, rest = match[1] == "!", match[2], match[3]
    opcode, _, operands = rest.partition(" ")
    parts = tuple(opcode.split("."))
    return PtxInstruction(statement, parts, tuple(_operands(operands)), guard, negated)


def _operands(text: str) -> list[Operand]:
    """Splits at the commas outside of brackets and braces."""
    return [_operand(piece.strip()) for piece in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", text)]


def _operand(text: str) -> Operand:
    if text.startswith("{"):
        return RegisterList(tuple(name.strip() for name in text[1:-1].split(",")))
    if text.startswith("["):
        base, _, offset = text[1:-1].replace(" ", "").partition("+")
        return Address(base, int(offset, 0) if offset else 0)
    return text
