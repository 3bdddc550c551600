"""Norms with a gate, rounded once.

    gated_norm    norm(x) * weight * silu(gate)             by head, with one weight: gated delta nets
    grouped_norm  norm(x * silu(factor * gate)) * weight    by group, or without norm and weight: Mamba-2
    output_gate   x * sigmoid(gate)                         of attention

Squares are summed as in kernels.cpu.elementwise.norms.
"""

from kernels.cpu.compiler.language import Static, float32
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import FLOAT32, Element, by_dtype
from kernels.cpu.isa.simd import fma, load_first_f32, sqrt, store_first_f32, sum_in_order
from kernels.cpu.isa.vectors import LANES
from kernels.cpu.states.records import GatedNormRecord, GroupedNormRecord, OutputGateRecord


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


@by_dtype
def gated_norm(
    element: Static[Element], record: GatedNormRecord, first: int, count: int, thread: int
) -> None:
    """Computes kernels.ops.layers.norms.gated_norm of tokens first .. first + count - 1."""
    heads, width = record.heads, record.width
    for row in range(first, first + count):
        for head in range(heads):
            place = width * (heads * row + head)
            gate = record.gate + element.size * (record.stride * row + width * head)
            _norm_head(element, record, record.x + 4 * place, gate, record.out + element.size * place)


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


@by_dtype
def grouped_norm(
    element: Static[Element], record: GroupedNormRecord, first: int, count: int, thread: int
) -> None:
    """Computes kernels.ops.layers.norms.grouped_norm of tokens first .. first + count - 1."""
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


@by_dtype
def output_gate(
    element: Static[Element], record: OutputGateRecord, first: int, count: int, thread: int
) -> None:
    """Computes x * sigmoid(gate) of rows first .. first + count - 1: what gates the output of attention."""
    width, size = record.width, element.size * record.width
    for row in range(first, first + count):
        x, gate, out = record.x + size * row, record.gate + size * row, record.out + size * row
        for i in range(0, width, LANES):
            at, left = element.size * i, min(LANES, width - i)
            gates = element.load_first(gate + at, left)
            element.store_first(
                out + at, element.times_sigmoid(element.load_first(x + at, left), gates), left
            )
