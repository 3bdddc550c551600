"""kernels.ops.layers.rms_norm a row at a time: 16 values per step, squares summed by lane, and
the 16 sums from left to right."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static, float32
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import BFLOAT16, Element
from kernels.cpu.elementwise.records import NormRecord
from kernels.cpu.isa.simd import fma, sqrt, sum_in_order


def add_rows(element: Static[Element], x: int, residual: int, total: int, width: int, factor: float) -> None:
    """Writes the sum of two rows, x times the factor."""
    for i in range(0, width - 15, 16):
        at = element.size * i
        element.store(total + at, element.load(x + at) * factor + element.load(residual + at))
    rest = width % 16
    if rest:
        at = element.size * (width - rest)
        values = element.load_first(x + at, rest) * factor
        element.store_first(total + at, values + element.load_first(residual + at, rest), rest)


def _sum_of_squares(element: Static[Element], x: int, width: int) -> float:
    squares = f32x16(0.0)
    for i in range(0, width - 15, 16):
        values = element.load(x + element.size * i)
        squares = fma(values, values, squares)
    rest = width % 16
    if rest:
        values = element.load_first(x + element.size * (width - rest), rest)
        squares = fma(values, values, squares)
    return sum_in_order(squares)


def _norm(
    element: Static[Element], x: int, weight: int, normed: int, width: int, eps: float, offset: float
) -> None:
    """One row."""
    mean = float32(_sum_of_squares(element, x, width) / float32(width))
    factor = float32(float32(1.0) / sqrt(float32(mean + eps)))
    for i in range(0, width - 15, 16):
        at = element.size * i
        element.store(normed + at, element.load(x + at) * factor * (element.load(weight + at) + offset))
    rest = width % 16
    if rest:
        at = element.size * (width - rest)
        values, weights = element.load_first(x + at, rest), element.load_first(weight + at, rest)
        element.store_first(normed + at, values * factor * (weights + offset), rest)


def rms_norm_rows(element: Static[Element], record: NormRecord, first: int, count: int) -> None:
    """Rows first .. first + count - 1."""
    x, residual, normed, total = record.x, record.residual, record.normed, record.total
    width, eps = record.width, record.eps
    for row in range(first, first + count):
        for head in range(record.heads):
            at = record.stride * row + element.size * width * head
            if residual:
                add_rows(element, x + at, residual + at, total + at, width, record.factor)
            _norm(element, total + at, record.weight, normed + at, width, eps, record.weight_offset)


@operation
def rms_norm(record: NormRecord, first: int, count: int, thread: int) -> None:
    """In bfloat16."""
    rms_norm_rows(BFLOAT16, record, first, count)
