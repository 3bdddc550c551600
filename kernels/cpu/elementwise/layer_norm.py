"""kernels.ops.layers.layer_norm in bfloat16, by itself or after a residual addition, a row at a time: 16
values per step, sums by lane, and the 16 sums from left to right. Widths are multiples of 16."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import float32
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.records import LayerNormRecord
from kernels.cpu.isa.simd import fma, load_bf16, sqrt, store_bf16, sum_in_order


def _add(x: int, residual: int, total: int, size: int) -> None:
    """Writes the sum of two rows of `size` bytes."""
    for at in range(0, size, 32):
        store_bf16(total + at, load_bf16(x + at) + load_bf16(residual + at))


def _norm(x: int, weight: int, bias: int, normed: int, size: int, eps: float) -> None:
    """One row of `size` bytes."""
    sums = f32x16(0.0)
    for at in range(0, size, 32):
        sums = sums + load_bf16(x + at)
    mean = sum_in_order(sums) / float32(size // 2)
    squares = f32x16(0.0)
    for at in range(0, size, 32):
        centered = load_bf16(x + at) - mean
        squares = fma(centered, centered, squares)
    variance = sum_in_order(squares) / float32(size // 2)
    factor = float32(1.0) / sqrt(float32(variance + float32(eps)))
    for at in range(0, size, 32):
        scaled = (load_bf16(x + at) - mean) * factor
        store_bf16(normed + at, fma(scaled, load_bf16(weight + at), load_bf16(bias + at)))


@operation
def layer_norm(record: LayerNormRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    x, residual, normed, total = record.x, record.residual, record.normed, record.total
    weight, bias, size, eps = record.weight, record.bias, 2 * record.width, record.eps
    for row in range(first, first + count):
        at = size * row
        if residual:
            _add(x + at, residual + at, total + at, size)
        _norm(total + at, weight, bias, normed + at, size, eps)
