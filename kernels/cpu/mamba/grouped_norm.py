"""kernels.ops.mamba.grouped_norm.grouped_norm, a group at a time, rounded once; squares are summed as in
kernels.cpu.elementwise.rms_norm."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static, float32
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import BFLOAT16, FLOAT32, Element
from kernels.cpu.isa.simd import fma, load_first_f32, sqrt, store_first_f32, sum_in_order
from kernels.cpu.isa.vectors import LANES
from kernels.cpu.mamba.records import GroupedNormRecord


def _gate_group(element: Static[Element], x: int, gate: int, width: int, factor: float) -> f32x16:
    """Leaves x * silu(factor * gate) in x. Returns sums of its squares."""
    squares = f32x16(0.0)
    for i in range(0, width, LANES):
        left = min(LANES, width - i)
        gates = element.load_first(gate + element.size * i, left) * factor
        values = FLOAT32.times_sigmoid(load_first_f32(x + 4 * i, left) * gates, gates)
        store_first_f32(x + 4 * i, values, left)
        squares = fma(values, values, squares)
    return squares


def _norm_group(
    element: Static[Element], x: int, weight: int, out: int, width: int, eps: float, squares: f32x16
) -> None:
    """One group, which has been gated. Addresses; weight 0: there is no norm."""
    mean = float32(sum_in_order(squares) / float32(width))
    factor = float32(float32(1.0) / sqrt(float32(mean + eps)))
    for i in range(0, width, LANES):
        at, left = element.size * i, min(LANES, width - i)
        values = load_first_f32(x + 4 * i, left)
        if weight:
            values = values * factor * element.load_first(weight + at, left)
        element.store_first(out + at, values, left)


def norm_tokens(element: Static[Element], record: GroupedNormRecord, first: int, count: int) -> None:
    """Tokens first .. first + count - 1."""
    groups, width, size = record.groups, record.width, element.size
    for token in range(first, first + count):
        for group in range(groups):
            at, weight = width * (groups * token + group), record.weight
            gate = record.gate + size * (record.stride * token + width * group)
            if weight:
                weight = weight + size * width * group
            squares = _gate_group(element, record.x + 4 * at, gate, width, record.factor)
            _norm_group(
                element, record.x + 4 * at, weight, record.out + size * at, width, record.eps, squares
            )


@operation
def grouped_norm(record: GroupedNormRecord, first: int, count: int, thread: int) -> None:
    """To bfloat16."""
    norm_tokens(BFLOAT16, record, first, count)


@operation
def grouped_norm_float32(record: GroupedNormRecord, first: int, count: int, thread: int) -> None:
    """To float32."""
    norm_tokens(FLOAT32, record, first, count)
