"""kernels.ops.layers.rotary in bfloat16, in place or to another place: both halves of a head at once, 16
pairs per step. Head sizes are multiples of 32."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.elementwise.records import RotaryRecord
from kernels.cpu.isa.simd import load_bf16, load_f32, store_bf16
from kernels.cpu.isa.vectors import read_i64


def _rotate(x: int, out: int, cos: int, sin: int, half: int) -> None:
    """One head. half: bytes of half a head."""
    for at in range(0, half, 32):
        a, b = load_bf16(x + at), load_bf16(x + half + at)
        cosine, sine = load_f32(cos + 2 * at), load_f32(sin + 2 * at)
        store_bf16(out + at, a * cosine - b * sine)
        store_bf16(out + half + at, b * cosine + a * sine)


@operation
def rotary(record: RotaryRecord, first: int, count: int, thread: int) -> None:
    """Tokens first .. first + count - 1. The second halves of cos and sin are as the formula has them."""
    x, out, head_dim = record.x, record.out, record.head_dim
    for token in range(first, first + count):
        row = read_i64(record.index + 8 * token) if record.index else token
        at = 4 * head_dim * row + 2 * head_dim
        for head in range(record.heads):
            offset = record.stride * token + 2 * head_dim * head
            _rotate(x + offset, out + offset, record.cos + at, record.sin + at, head_dim)
