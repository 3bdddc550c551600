"""x * sigmoid(gate), rounded once, 16 values per step: what gates the output of attention."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static
from kernels.cpu.delta.records import OutputGateRecord
from kernels.cpu.elementwise.elements import BFLOAT16, FLOAT32, Element
from kernels.cpu.isa.vectors import LANES


def gate_output_rows(element: Static[Element], record: OutputGateRecord, first: int, count: int) -> None:
    """Rows first .. first + count - 1."""
    width, size = record.width, element.size * record.width
    for row in range(first, first + count):
        x, gate, out = record.x + size * row, record.gate + size * row, record.out + size * row
        for i in range(0, width, LANES):
            at, left = element.size * i, min(LANES, width - i)
            gates = element.load_first(gate + at, left)
            element.store_first(
                out + at, element.times_sigmoid(element.load_first(x + at, left), gates), left
            )


@operation
def output_gate(record: OutputGateRecord, first: int, count: int, thread: int) -> None:
    """In bfloat16."""
    gate_output_rows(BFLOAT16, record, first, count)


@operation
def output_gate_float32(record: OutputGateRecord, first: int, count: int, thread: int) -> None:
    """In float32."""
    gate_output_rows(FLOAT32, record, first, count)
