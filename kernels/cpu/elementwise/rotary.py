"""kernels.ops.layers.rotary, in place or not: both halves of a head at once, 16 pairs per step.
Head sizes are even."""

from kernels.cpu.compiler.language import Static
from kernels.cpu.elementwise.elements import Element, by_dtype
from kernels.cpu.elementwise.records import RotaryRecord
from kernels.cpu.isa.simd import load_f32, load_first_f32
from kernels.cpu.isa.vectors import read_i64


def _rotate(element: Static[Element], x: int, out: int, cos: int, sin: int, half: int) -> None:
    """One head. half: values of half a head."""
    size = element.size
    for i in range(0, half - 15, 16):
        low, high = size * i, size * (half + i)
        a, b = element.load(x + low), element.load(x + high)
        cosine, sine = load_f32(cos + 4 * i), load_f32(sin + 4 * i)
        element.store(out + low, a * cosine - b * sine)
        element.store(out + high, b * cosine + a * sine)
    rest = half % 16
    if rest:
        i = half - rest
        low, high = size * i, size * (half + i)
        a, b = element.load_first(x + low, rest), element.load_first(x + high, rest)
        cosine, sine = load_first_f32(cos + 4 * i, rest), load_first_f32(sin + 4 * i, rest)
        element.store_first(out + low, a * cosine - b * sine, rest)
        element.store_first(out + high, b * cosine + a * sine, rest)


@by_dtype
def rotary(element: Static[Element], record: RotaryRecord, first: int, count: int, thread: int) -> None:
    """Rotates tokens first .. first + count - 1. The second halves of cos and sin are as the formula has
    them."""
    x, out, head_dim = record.x, record.out, record.head_dim
    for token in range(first, first + count):
        row = read_i64(record.index + 8 * token) if record.index else token
        at = 4 * head_dim * row + 2 * head_dim
        for head in range(record.heads):
            offset = record.stride * token + element.size * head_dim * head
            _rotate(element, x + offset, out + offset, record.cos + at, record.sin + at, head_dim // 2)
