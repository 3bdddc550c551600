"""Factors: x * factor + y, and scaled and capped logits; rounded once, 16 values per step."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static
from kernels.cpu.elementwise.elements import Element, by_dtype
from kernels.cpu.elementwise.records import AdjustLogitsRecord, ScaledAddRecord
from kernels.cpu.isa.exp import capped
from kernels.cpu.isa.simd import load_f32, store_f32


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
    """Computes kernels.ops.layers.adjust_logits of rows first .. first + count - 1, of at least 16 float32:
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
