"""kernels.ops.layers.layer_norm, by itself or after a residual addition, a row at a time: 16
values per step, sums by lane, and the 16 sums from left to right."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static, float32
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import BFLOAT16, Element
from kernels.cpu.elementwise.records import LayerNormRecord
from kernels.cpu.elementwise.rms_norm import add_rows
from kernels.cpu.isa.simd import fma, keep_first, sqrt, sum_in_order


def _mean(element: Static[Element], x: int, width: int) -> float:
    sums = f32x16(0.0)
    for i in range(0, width - 15, 16):
        sums = sums + element.load(x + element.size * i)
    rest = width % 16
    if rest:
        sums = sums + element.load_first(x + element.size * (width - rest), rest)
    return float32(sum_in_order(sums) / float32(width))


def _variance(element: Static[Element], x: int, width: int, mean: float) -> float:
    squares = f32x16(0.0)
    for i in range(0, width - 15, 16):
        centered = element.load(x + element.size * i) - float32(mean)
        squares = fma(centered, centered, squares)
    rest = width % 16
    if rest:
        values = element.load_first(x + element.size * (width - rest), rest)
        centered = keep_first(values - float32(mean), rest)
        squares = fma(centered, centered, squares)
    return float32(sum_in_order(squares) / float32(width))


def _norm(
    element: Static[Element], x: int, weight: int, bias: int, normed: int, width: int, eps: float
) -> None:
    """One row."""
    mean = float32(_mean(element, x, width))
    variance = _variance(element, x, width, mean)
    factor = float32(float32(1.0) / sqrt(float32(float32(variance) + float32(eps))))
    for i in range(0, width - 15, 16):
        at = element.size * i
        scaled = (element.load(x + at) - mean) * factor
        element.store(normed + at, fma(scaled, element.load(weight + at), element.load(bias + at)))
    rest = width % 16
    if rest:
        at = element.size * (width - rest)
        scaled = (element.load_first(x + at, rest) - mean) * factor
        factors, added = element.load_first(weight + at, rest), element.load_first(bias + at, rest)
        element.store_first(normed + at, fma(scaled, factors, added), rest)


def layer_norm_rows(element: Static[Element], record: LayerNormRecord, first: int, count: int) -> None:
    """Rows first .. first + count - 1."""
    x, residual, normed, total = record.x, record.residual, record.normed, record.total
    weight, bias, width, eps = record.weight, record.bias, record.width, record.eps
    for row in range(first, first + count):
        at = element.size * width * row
        if residual:
            add_rows(element, x + at, residual + at, total + at, width, 1.0)
        _norm(element, total + at, weight, bias, normed + at, width, eps)


@operation
def layer_norm(record: LayerNormRecord, first: int, count: int, thread: int) -> None:
    """In bfloat16."""
    layer_norm_rows(BFLOAT16, record, first, count)
