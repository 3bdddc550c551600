"""kernels.ops.layers.clamped_swiglu, rounded once, 16 values per step, as exact as in
kernels.cpu.elementwise.activation."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import BFLOAT16, FLOAT32, Element
from kernels.cpu.elementwise.records import ClampedSwigluRecord
from kernels.cpu.isa.simd import select


def gate_clamped_rows(element: Static[Element], record: ClampedSwigluRecord, first: int, count: int) -> None:
    """Rows first .. first + count - 1. NaN of NaN."""
    size = element.size * record.width
    most, least = f32x16(record.limit), f32x16(-record.limit)
    for row in range(first, first + count):
        at, out = record.gate_up + 2 * size * row, record.out + size * row
        for i in range(0, record.width, 16):
            begin, left = element.size * i, min(16, record.width - i)
            gate, up = element.load_first(at + begin, left), element.load_first(at + size + begin, left)
            gate = select(most < gate, most, gate)
            up = select(most < up, most, select(up < least, least, up))
            glu = element.times_sigmoid(gate, gate * f32x16(record.alpha))
            element.store_first(out + begin, (up + f32x16(1.0)) * glu, left)


@operation
def clamped_swiglu(record: ClampedSwigluRecord, first: int, count: int, thread: int) -> None:
    """In bfloat16."""
    gate_clamped_rows(BFLOAT16, record, first, count)


@operation
def clamped_swiglu_float32(record: ClampedSwigluRecord, first: int, count: int, thread: int) -> None:
    """In float32."""
    gate_clamped_rows(FLOAT32, record, first, count)
