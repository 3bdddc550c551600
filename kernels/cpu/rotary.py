"""kernels.rotary in bfloat16, in place: both halves of a head at once, 16 pairs per step. Head sizes are
multiples of 32."""

from typing import Any

from numba import njit, prange, types
from numba.extending import intrinsic

from kernels.cpu.compiler import FEW_VALUES, compiled
from kernels.cpu.vectors import F32S, load, repeat, rounded, store, widened, word


@intrinsic
def _rotate(typing: Any, x: Any, cos: Any, sin: Any, half: Any) -> Any:
    """One head. half: of its size."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, cos, sin, half = args
        second = builder.add(x, builder.mul(half, word(2)))

        def turn(v: Any, nothing: list[Any]) -> list[Any]:
            at, wide_at = builder.mul(v, word(32)), builder.mul(v, word(64))
            a_at, b_at = builder.add(x, at), builder.add(second, at)
            a, b = widened(builder, a_at), widened(builder, b_at)
            cosine = load(builder, builder.add(cos, wide_at), F32S)
            sine = load(builder, builder.add(sin, wide_at), F32S)
            to_a = builder.fsub(builder.fmul(a, cosine), builder.fmul(b, sine))
            to_b = builder.fadd(builder.fmul(b, cosine), builder.fmul(a, sine))
            store(builder, rounded(builder, to_a), a_at)
            store(builder, rounded(builder, to_b), b_at)
            return nothing

        repeat(builder, builder.sdiv(half, word(16)), [], turn)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@njit(error_model="numpy")
def _token(token: int, x: int, stride: int, cos: int, sin: int, heads: int, head_dim: int) -> None:
    """The second halves of cos and sin are as the formula has them."""
    at = 4 * head_dim * token + 2 * head_dim
    for head in range(heads):
        _rotate(x + stride * token + 2 * head_dim * head, cos + at, sin + at, head_dim // 2)


@compiled("void(int64, int64, int64, int64, int64, int64, int64)")
def rotary_bf16(x: int, stride: int, cos: int, sin: int, tokens: int, heads: int, head_dim: int) -> None:
    """x: address of [tokens, heads, head_dim], `stride` bytes from token to token, changed in place. cos,
    sin: of [tokens, head_dim] float32, see kernels.rotary."""
    if tokens * heads * head_dim < FEW_VALUES:
        for token in range(tokens):
            _token(token, x, stride, cos, sin, heads, head_dim)
    else:
        for token in prange(tokens):
            _token(token, x, stride, cos, sin, heads, head_dim)
