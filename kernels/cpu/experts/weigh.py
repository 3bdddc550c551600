"""kernels.ops.experts.weigh, 16 values per step, rounded once."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static
from kernels.cpu.elementwise.elements import BFLOAT16, FLOAT32, Element
from kernels.cpu.experts.records import WeighRecord
from kernels.cpu.isa.vectors import LANES, read_f32, read_i64


def weigh_rows(element: Static[Element], record: WeighRecord, first: int, count: int) -> None:
    """Pairs first .. first + count - 1."""
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


@operation
def weigh(record: WeighRecord, first: int, count: int, thread: int) -> None:
    """In bfloat16."""
    weigh_rows(BFLOAT16, record, first, count)


@operation
def weigh_float32(record: WeighRecord, first: int, count: int, thread: int) -> None:
    """In float32."""
    weigh_rows(FLOAT32, record, first, count)
