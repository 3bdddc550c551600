"""RMS norm and layer norm, alone or after a residual addition, a row at a time: 16 values per step, squares
summed by lane, and the 16 sums from left to right. Factors, as in kernels.ops.layers.norms: x * factor + y,
and scaled and capped logits; rounded once."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static, float32
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import Element, by_dtype
from kernels.cpu.elementwise.records import AdjustLogitsRecord, LayerNormRecord, NormRecord, ScaledAddRecord
from kernels.cpu.isa.exp import capped
from kernels.cpu.isa.simd import fma, keep_first, load_f32, sqrt, store_f32, sum_in_order


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


def _rms_norm_row(
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


@by_dtype
def rms_norm(element: Static[Element], record: NormRecord, first: int, count: int, thread: int) -> None:
    """Computes kernels.ops.layers.norms of rows first .. first + count - 1, after a residual addition
    where the record has one."""
    x, residual, normed, total = record.x, record.residual, record.normed, record.total
    width, eps = record.width, record.eps
    for row in range(first, first + count):
        for head in range(record.heads):
            at = record.stride * row + element.size * width * head
            if residual:
                add_rows(element, x + at, residual + at, total + at, width, record.factor)
            _rms_norm_row(element, total + at, record.weight, normed + at, width, eps, record.weight_offset)


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


def _layer_norm_row(
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


@by_dtype
def layer_norm(
    element: Static[Element], record: LayerNormRecord, first: int, count: int, thread: int
) -> None:
    """Computes kernels.ops.layers.norms of rows first .. first + count - 1, likewise."""
    x, residual, normed, total = record.x, record.residual, record.normed, record.total
    weight, bias, width, eps = record.weight, record.bias, record.width, record.eps
    for row in range(first, first + count):
        at = element.size * width * row
        if residual:
            add_rows(element, x + at, residual + at, total + at, width, 1.0)
        _layer_norm_row(element, total + at, weight, bias, normed + at, width, eps)


@by_dtype
def scaled_add(
    element: Static[Element], record: ScaledAddRecord, first: int, count: int, thread: int
) -> None:
    """Computes x * factor + y of rows first .. first + count - 1."""
    values, offset = record.width * count, element.size * record.width * first
    x, y, out, factor = record.x + offset, record.y, record.out + offset, record.factor
    for i in range(0, values, 16):
        at, left = element.size * i, values - i
        product = (element.load(x + at) if left >= 16 else element.load_first(x + at, left)) * factor
        if y:
            added = y + offset + at
            product = product + (element.load(added) if left >= 16 else element.load_first(added, left))
        element.store_first(out + at, product, left)


@operation
def adjust_logits(record: AdjustLogitsRecord, first: int, count: int, thread: int) -> None:
    """Computes kernels.ops.layers.norms of rows first .. first + count - 1, of at least 16 float32:
    the last step of a row may compute some of the values before it again."""
    scale, cap, size = record.scale, record.cap, 4 * record.width
    for row in range(first, first + count):
        x, out = record.x + size * row, record.out + size * row
        for begin in range(0, size, 64):
            at = min(begin, size - 64)
            scaled = load_f32(x + at) * scale
            if cap > 0:
                store_f32(out + at, capped(scaled, cap))
            else:
                store_f32(out + at, scaled)
