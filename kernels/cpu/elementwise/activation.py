"""silu(gate) * up in bfloat16, rounded once, 16 values per step. Widths are multiples of 16.

    silu(x) = x / (1 + e ** -x), before it is rounded to 1.7e-4 of it: e ** -x to 1.0e-4
              (kernels.cpu.isa.exp), a reciprocal to 2 ** -14. Rounding may cost 3.9e-3.

Where e ** -x is infinite, some way below x = -88, the result is 0.
"""

import math

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.records import GatedSiluRecord
from kernels.cpu.isa.exp import BIAS, EXPONENT_UNIT, rough_exponent, rough_fraction
from kernels.cpu.isa.simd import fma, load_bf16, reciprocal, select, store_bf16

_UNIT, _ONE, _INFINITE = (value * EXPONENT_UNIT for value in (-math.log2(math.e), BIAS, 255))


def times_sigmoid(x: f32x16, y: f32x16) -> f32x16:
    """x * sigmoid(y). NaN of NaN and, as the formula has it, of -inf."""
    infinite = f32x16(_INFINITE)
    bits = fma(y, f32x16(_UNIT), f32x16(_ONE))
    bits = select(bits < infinite, bits, infinite)
    divisor = fma(rough_fraction(bits), rough_exponent(bits), f32x16(1.0))
    return x * reciprocal(divisor)


def silu(x: f32x16) -> f32x16:
    """x * sigmoid(x)."""
    return times_sigmoid(x, x)


@operation
def gated_silu(record: GatedSiluRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    size = 2 * record.width
    for row in range(first, first + count):
        gate, out = record.gate_up + 2 * size * row, record.out + size * row
        for at in range(0, size, 32):
            product = silu(load_bf16(gate + at)) * load_bf16(gate + size + at)
            store_bf16(out + at, product)
