"""Ungated activations in bfloat16, rounded once, 16 values per step. Widths are multiples of 16.

    relu(x)       = max(x, 0)
    silu(x)       = x * sigmoid(x)
    quick_gelu(x) = x * sigmoid(1.702 x)
    gelu_new(x)   = x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x ** 3)), which is the form with tanh

All but the first are x * sigmoid(linear * x + cubic * x ** 3), as exact as in
kernels.cpu.elementwise.activation.
"""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.activation import times_sigmoid
from kernels.cpu.elementwise.records import ActivationRecord
from kernels.cpu.isa.simd import fma, load_bf16, select, store_bf16


def _relu(x: f32x16) -> f32x16:
    """NaN of NaN."""
    return select(x < f32x16(0.0), f32x16(0.0), x)


@operation
def activation(record: ActivationRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    size = 2 * record.width
    linear, cubic = record.linear, record.cubic
    for at in range(size * first, size * (first + count), 32):
        x = load_bf16(record.x + at)
        if linear == 0:
            store_bf16(record.out + at, _relu(x))
        else:
            slope = fma(x * x, f32x16(cubic), f32x16(linear))
            store_bf16(record.out + at, times_sigmoid(x, x * slope))
