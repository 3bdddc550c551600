"""What all layers with a state do with it: it begins with zeros, is copied behind some tokens, and takes what
was drafted once that is accepted."""

from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.isa.simd import fma, load_f32, load_first_f32, store_first_f32
from kernels.cpu.isa.vectors import LANES, read_f32
from kernels.cpu.states.records import Span
from kernels.ops.states.update_log import padded, update_width


def clear(at: int, count: int) -> None:
    """So many float32."""
    for i in range(0, count, LANES):
        store_first_f32(at + 4 * i, f32x16(0.0), min(LANES, count - i))


def copy(source: int, target: int, count: int) -> None:
    """So many float32."""
    for i in range(0, count, LANES):
        left = min(LANES, count - i)
        store_first_f32(target + 4 * i, load_first_f32(source + 4 * i, left), left)


def save(span: Span, behind: int, states: int, of_row: int, head: int, count: int) -> None:
    """Copies the state of a head behind so many tokens of a span to where it is wanted. states: of all rows,
    of_row bytes each, in which that of the head begins at `head`. count: float32 of a head."""
    source = states + of_row * span.row + head
    if span.behind == behind:
        copy(source, states + of_row * span.target + head, count)
    if span.behind_2 == behind:
        copy(source, states + of_row * span.target_2 + head, count)


def replay(state: int, log: int, count: int, keys: int, values: int) -> None:
    """Does what the first `count` entries of a head's log do to its state, [keys, values]. A value of the
    state goes through all of them in a register."""
    size, change, decay = (
        4 * update_width(keys, values),
        4 * padded(keys),
        4 * (padded(keys) + padded(values)),
    )
    for j in range(0, values, LANES):
        left = min(LANES, values - j)
        for i in range(keys):
            at = state + 4 * (values * i + j)
            total = load_first_f32(at, left)
            for k in range(count):
                entry = log + size * k
                key = f32x16(read_f32(entry + 4 * i))
                total = fma(key, load_f32(entry + change + 4 * j), total * f32x16(read_f32(entry + decay)))
            store_first_f32(at, total, left)
