"""kernels.ops.layers.rms_norm in bfloat16, a row at a time: 16 values per step, squares summed by lane, and
the 16 sums from left to right. Widths are multiples of 16."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import float32
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.records import NormRecord
from kernels.cpu.isa.simd import fma, load_bf16, sqrt, store_bf16, sum_in_order


def _add(x: int, residual: int, total: int, size: int, factor: float) -> None:
    """Writes the sum of two rows of `size` bytes, x times the factor."""
    for at in range(0, size, 32):
        store_bf16(total + at, load_bf16(x + at) * factor + load_bf16(residual + at))


def _norm(x: int, weight: int, normed: int, size: int, eps: float, offset: float) -> None:
    """One row of `size` bytes."""
    squares = f32x16(0.0)
    for at in range(0, size, 32):
        values = load_bf16(x + at)
        squares = fma(values, values, squares)
    mean = float32(sum_in_order(squares) / float32(size // 2))
    factor = float32(float32(1.0) / sqrt(float32(mean + eps)))
    for at in range(0, size, 32):
        store_bf16(normed + at, load_bf16(x + at) * factor * (load_bf16(weight + at) + offset))


@operation
def rms_norm(record: NormRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    x, residual, normed, total = record.x, record.residual, record.normed, record.total
    weight, size, eps = record.weight, 2 * record.width, record.eps
    for row in range(first, first + count):
        for head in range(record.heads):
            at = record.stride * row + size * head
            if residual:
                _add(x + at, residual + at, total + at, size, record.factor)
            _norm(total + at, weight, normed + at, size, eps, record.weight_offset)
