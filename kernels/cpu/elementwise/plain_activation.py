"""Ungated activations, rounded once, 16 values per step.

    relu(x)       = max(x, 0)
    silu(x)       = x * sigmoid(x)
    quick_gelu(x) = x * sigmoid(1.702 x)
    gelu_new(x)   = x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x ** 3)), which is the form with tanh

All but the first are x * sigmoid(linear * x + cubic * x ** 3), as exact as in
kernels.cpu.elementwise.activation.
"""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import BFLOAT16, Element
from kernels.cpu.elementwise.records import ActivationRecord
from kernels.cpu.isa.simd import fma, select


def _relu(x: f32x16) -> f32x16:
    """NaN of NaN."""
    return select(x < f32x16(0.0), f32x16(0.0), x)


def _activated(element: Static[Element], linear: float, cubic: float, x: f32x16) -> f32x16:
    """16 values."""
    slope = fma(x * x, f32x16(cubic), f32x16(linear))
    return element.times_sigmoid(x, x * slope)


def activate_rows(element: Static[Element], record: ActivationRecord, first: int, count: int) -> None:
    """Rows first .. first + count - 1."""
    values, offset = record.width * count, element.size * record.width * first
    x, out, linear, cubic = record.x + offset, record.out + offset, record.linear, record.cubic
    for i in range(0, values, 16):
        at, left = element.size * i, values - i
        loaded = element.load(x + at) if left >= 16 else element.load_first(x + at, left)
        if linear == 0:
            element.store_first(out + at, _relu(loaded), left)
        else:
            element.store_first(out + at, _activated(element, linear, cubic, loaded), left)


@operation
def activation(record: ActivationRecord, first: int, count: int, thread: int) -> None:
    """In bfloat16."""
    activate_rows(BFLOAT16, record, first, count)
