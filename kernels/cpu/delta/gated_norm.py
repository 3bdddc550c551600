"""kernels.ops.delta.gated_norm.gated_norm, a head at a time, rounded once; squares are summed as in
kernels.cpu.elementwise.rms_norm."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static, float32
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.delta.records import GatedNormRecord
from kernels.cpu.elementwise.elements import BFLOAT16, FLOAT32, Element
from kernels.cpu.isa.simd import fma, load_first_f32, sqrt, sum_in_order
from kernels.cpu.isa.vectors import LANES


def _norm_head(element: Static[Element], record: GatedNormRecord, x: int, gate: int, out: int) -> None:
    """One head. Addresses."""
    width, squares = record.width, f32x16(0.0)
    for i in range(0, width, LANES):
        values = load_first_f32(x + 4 * i, min(LANES, width - i))
        squares = fma(values, values, squares)
    mean = float32(sum_in_order(squares) / float32(width))
    factor = float32(float32(1.0) / sqrt(float32(mean + record.eps)))
    for i in range(0, width, LANES):
        at, left = element.size * i, min(LANES, width - i)
        normed = load_first_f32(x + 4 * i, left) * factor * element.load_first(record.weight + at, left)
        gates = element.load_first(gate + at, left)
        element.store_first(out + at, normed * FLOAT32.times_sigmoid(gates, gates), left)


def norm_rows(element: Static[Element], record: GatedNormRecord, first: int, count: int) -> None:
    """Tokens first .. first + count - 1."""
    heads, width = record.heads, record.width
    for row in range(first, first + count):
        for head in range(heads):
            place = width * (heads * row + head)
            gate = record.gate + element.size * (record.stride * row + width * head)
            _norm_head(element, record, record.x + 4 * place, gate, record.out + element.size * place)


@operation
def gated_norm(record: GatedNormRecord, first: int, count: int, thread: int) -> None:
    """To bfloat16."""
    norm_rows(BFLOAT16, record, first, count)


@operation
def gated_norm_float32(record: GatedNormRecord, first: int, count: int, thread: int) -> None:
    """To float32."""
    norm_rows(FLOAT32, record, first, count)
