"""kernels.ops.layers.rotary in bfloat16, in place or to another place: both halves of a head at once, 16
pairs per step. Head sizes are multiples of 32."""

from typing import Any

from kernels.cpu.compiler import types
from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.elementwise.records import RotaryRecord
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.vectors import F32S, load, read_i64, repeat, store, widened, word


@intrinsic(types.void(*[types.int64] * 5))
def _rotate(builder: Any, x: Any, out: Any, cos: Any, sin: Any, half: Any) -> None:
    """One head. half: of its size."""
    to_second = builder.mul(half, word(2))

    def turn(v: Any, nothing: list[Any]) -> list[Any]:
        at, wide_at = builder.mul(v, word(32)), builder.mul(v, word(64))
        second_at = builder.add(to_second, at)
        a, b = (widened(builder, builder.add(x, offset)) for offset in (at, second_at))
        cosine = load(builder, builder.add(cos, wide_at), F32S)
        sine = load(builder, builder.add(sin, wide_at), F32S)
        to_a = builder.fsub(builder.fmul(a, cosine), builder.fmul(b, sine))
        to_b = builder.fadd(builder.fmul(b, cosine), builder.fmul(a, sine))
        store(builder, OPERATIONS.round_to_bfloat16(builder, to_a), builder.add(out, at))
        store(builder, OPERATIONS.round_to_bfloat16(builder, to_b), builder.add(out, second_at))
        return nothing

    repeat(builder, builder.sdiv(half, word(16)), [], turn)


@operation
def rotary(record: RotaryRecord, first: int, count: int, thread: int) -> None:
    """Tokens first .. first + count - 1. The second halves of cos and sin are as the formula has them."""
    x, out, head_dim = record.x, record.out, record.head_dim
    for token in range(first, first + count):
        row = read_i64(record.index + 8 * token) if record.index else token
        at = 4 * head_dim * row + 2 * head_dim
        for head in range(record.heads):
            offset = record.stride * token + 2 * head_dim * head
            _rotate(x + offset, out + offset, record.cos + at, record.sin + at, head_dim // 2)
