"""gelu(gate) * up in bfloat16 with the form of GELU that has tanh, rounded once, 16 values per step. Widths
are multiples of 16.

    gelu(x) = x * (1 + tanh(z)) / 2 = x * sigmoid(2 z),   z = sqrt(2 / pi) * (x + 0.044715 * x ** 3)

as exact as in kernels.cpu.elementwise.activation.
"""

import math

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.activation import times_sigmoid
from kernels.cpu.elementwise.records import GatedGeluRecord
from kernels.cpu.isa.simd import fma, load_bf16, store_bf16

_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _LINEAR


@operation
def gated_gelu(record: GatedGeluRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    size = 2 * record.width
    for row in range(first, first + count):
        gate, out = record.gate_up + 2 * size * row, record.out + size * row
        for at in range(0, size, 32):
            x = load_bf16(gate + at)
            slope = fma(x * x, f32x16(_CUBIC), f32x16(_LINEAR))
            store_bf16(out + at, times_sigmoid(x, x * slope) * load_bf16(gate + size + at))
