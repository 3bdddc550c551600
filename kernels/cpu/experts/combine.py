"""kernels.ops.experts.combine, 16 values per step, rounded once."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import BFLOAT16, FLOAT32, Element
from kernels.cpu.experts.records import CombineRecord
from kernels.cpu.isa.vectors import LANES, read_f32, read_i64


def combine_rows(element: Static[Element], record: CombineRecord, first: int, count: int) -> None:
    """Rows first .. first + count - 1."""
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


@operation
def combine(record: CombineRecord, first: int, count: int, thread: int) -> None:
    """In bfloat16."""
    combine_rows(BFLOAT16, record, first, count)


@operation
def combine_float32(record: CombineRecord, first: int, count: int, thread: int) -> None:
    """In float32."""
    combine_rows(FLOAT32, record, first, count)
