"""gelu(gate) * up with the form of GELU that has tanh, rounded once, 16 values per step.

    gelu(x) = x * (1 + tanh(z)) / 2 = x * sigmoid(2 z),   z = sqrt(2 / pi) * (x + 0.044715 * x ** 3)

as exact as in kernels.cpu.elementwise.activation.
"""

import math

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import BFLOAT16, Element
from kernels.cpu.elementwise.records import GatedGeluRecord
from kernels.cpu.isa.simd import fma

_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _LINEAR


def _gelu(element: Static[Element], x: f32x16) -> f32x16:
    slope = fma(x * x, f32x16(_CUBIC), f32x16(_LINEAR))
    return element.times_sigmoid(x, x * slope)


def gate_gelu_rows(element: Static[Element], record: GatedGeluRecord, first: int, count: int) -> None:
    """Rows first .. first + count - 1."""
    size, rest = element.size * record.width, record.width % 16
    for row in range(first, first + count):
        gate, out = record.gate_up + 2 * size * row, record.out + size * row
        for i in range(0, record.width - 15, 16):
            at = element.size * i
            activated = _gelu(element, element.load(gate + at))
            element.store(out + at, activated * element.load(gate + size + at))
        if rest:
            at = element.size * (record.width - rest)
            activated = _gelu(element, element.load_first(gate + at, rest))
            element.store_first(out + at, activated * element.load_first(gate + size + at, rest), rest)


@operation
def gated_gelu(record: GatedGeluRecord, first: int, count: int, thread: int) -> None:
    """In bfloat16."""
    gate_gelu_rows(BFLOAT16, record, first, count)
