"""The weights of experts: what they take is multiplied by them (weigh), or what they give is summed by them
(combine); 16 values per step, rounded once."""

from kernels.cpu.compiler.language import Static
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import FLOAT32, Element, by_dtype
from kernels.cpu.experts.records import CombineRecord, WeighRecord
from kernels.cpu.isa.vectors import LANES, read_f32, read_i64


@by_dtype
def weigh(element: Static[Element], record: WeighRecord, first: int, count: int, thread: int) -> None:
    """Computes kernels.ops.experts.dispatch of pairs first .. first + count - 1."""
    size = element.size * record.width
    for pair in range(first, first + count):
        x, out = (
            record.x + size * (pair // record.top_k),
            record.out + size * read_i64(record.places + 8 * pair),
        )
        weight = read_f32(record.weights + 4 * pair)
        for i in range(0, record.width, LANES):
            at, left = element.size * i, min(LANES, record.width - i)
            element.store_first(out + at, element.load_first(x + at, left) * weight, left)


@by_dtype
def combine(element: Static[Element], record: CombineRecord, first: int, count: int, thread: int) -> None:
    """Computes kernels.ops.experts.dispatch of rows first .. first + count - 1."""
    top_k, size = record.top_k, element.size * record.width
    for row in range(first, first + count):
        weights, places = record.weights + 4 * top_k * row, record.places + 8 * top_k * row
        factor = f32x16(1.0)
        if record.gate:
            factor = FLOAT32.times_sigmoid(factor, f32x16(read_f32(record.gate + 4 * row)))
        for i in range(0, record.width, LANES):
            at, left = element.size * i, min(LANES, record.width - i)
            total = element.load_first(record.y + size * read_i64(places) + at, left) * read_f32(weights)
            for j in range(1, top_k):
                y = record.y + size * read_i64(places + 8 * j) + at
                total = total + element.load_first(y, left) * read_f32(weights + 4 * j)
            if record.shared:
                total = total + element.load_first(record.shared + size * row + at, left) * factor
            element.store_first(record.out + size * row + at, total, left)
