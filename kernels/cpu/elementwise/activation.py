"""silu(factor * gate) * up, rounded once, 16 values per step.

    silu(x) = x / (1 + e ** -x)    in bfloat16, before it is rounded, to 1.7e-4 of it: e ** -x to 1.0e-4
                                   (kernels.cpu.isa.exp), a reciprocal to 2 ** -14. Rounding may cost 3.9e-3.
                                   In float32 to some roundings of it.

Where e ** -x is infinite, some way below x = -88, the result is 0.
"""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static
from kernels.cpu.elementwise.elements import BFLOAT16, Element
from kernels.cpu.elementwise.records import GatedSiluRecord


def gate_rows(element: Static[Element], record: GatedSiluRecord, first: int, count: int) -> None:
    """Rows first .. first + count - 1."""
    size, rest = element.size * record.width, record.width % 16
    for row in range(first, first + count):
        gate, out = record.gate_up + 2 * size * row, record.out + size * row
        for i in range(0, record.width - 15, 16):
            at = element.size * i
            x = element.load(gate + at) * record.factor
            element.store(out + at, element.times_sigmoid(x, x) * element.load(gate + size + at))
        if rest:
            at = element.size * (record.width - rest)
            x, up = element.load_first(gate + at, rest), element.load_first(gate + size + at, rest)
            x = x * record.factor
            element.store_first(out + at, element.times_sigmoid(x, x) * up, rest)


@operation
def gated_silu(record: GatedSiluRecord, first: int, count: int, thread: int) -> None:
    """In bfloat16."""
    gate_rows(BFLOAT16, record, first, count)
