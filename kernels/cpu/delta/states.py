"""What all layers with a state do with it: it begins with zeros, and is copied behind some tokens."""

from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.delta.records import Span
from kernels.cpu.isa.simd import load_first_f32, store_first_f32
from kernels.cpu.isa.vectors import LANES


def clear(at: int, count: int) -> None:
    """So many float32."""
    for i in range(0, count, LANES):
        store_first_f32(at + 4 * i, f32x16(0.0), min(LANES, count - i))


def _copy(source: int, target: int, count: int) -> None:
    """So many float32."""
    for i in range(0, count, LANES):
        left = min(LANES, count - i)
        store_first_f32(target + 4 * i, load_first_f32(source + 4 * i, left), left)


def save(span: Span, behind: int, states: int, of_row: int, head: int, count: int) -> None:
    """Copies the state of a head behind so many tokens of a span to where it is wanted. states: of all rows,
    of_row bytes each, in which that of the head begins at `head`. count: float32 of a head."""
    source = states + of_row * span.row + head
    if span.behind == behind:
        _copy(source, states + of_row * span.target + head, count)
    if span.behind_2 == behind:
        _copy(source, states + of_row * span.target_2 + head, count)
