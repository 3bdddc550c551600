"""kernels.ops.layers.rms_norm in bfloat16, a row at a time: 16 values per step, squares summed by lane, and
the 16 sums from left to right. Widths are multiples of 16."""

from typing import Any

from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.elementwise.records import NormRecord
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.vectors import (
    F32,
    broadcast,
    call,
    repeat,
    store,
    widened,
    word,
    zeros,
)


@intrinsic(types.void(*[types.int64] * 6, types.float32, types.float32))
def _add_norm(
    builder: Any,
    x: Any,
    residual: Any,
    weight: Any,
    normed: Any,
    total: Any,
    vectors: Any,
    width: Any,
    eps: Any,
) -> None:
    """One row. residual: address, or 0 for none; then total is x. width: float32."""

    def add_squares(v: Any, before: list[Any]) -> list[Any]:
        at = builder.mul(v, word(32))
        values = widened(builder, builder.add(x, at))
        total_at = builder.add(total, at)
        with builder.if_then(builder.icmp_signed("!=", residual, word(0))):
            added = builder.fadd(values, widened(builder, builder.add(residual, at)))
            store(builder, OPERATIONS.round_to_bfloat16(builder, added), total_at)
        values = widened(builder, total_at)  # what was rounded is normed
        return [call(builder, "llvm.fma.v16f32", values.type, values, values, before[0])]

    (squares,) = repeat(builder, vectors, zeros(1), add_squares)
    summed = call(builder, "llvm.vector.reduce.fadd.v16f32", F32, ir.Constant(F32, 0.0), squares)
    mean = builder.fadd(builder.fdiv(summed, width), eps)
    root = call(builder, "llvm.sqrt.f32", F32, mean)
    factor = broadcast(builder, builder.fdiv(ir.Constant(F32, 1.0), root))

    def write(v: Any, nothing: list[Any]) -> list[Any]:
        at = builder.mul(v, word(32))
        scaled = builder.fmul(widened(builder, builder.add(total, at)), factor)
        weighted = builder.fmul(scaled, widened(builder, builder.add(weight, at)))
        store(builder, OPERATIONS.round_to_bfloat16(builder, weighted), builder.add(normed, at))
        return nothing

    repeat(builder, vectors, [], write)


@operation
def rms_norm(record: NormRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    x, residual, normed, total = record.x, record.residual, record.normed, record.total
    width, eps = record.width, record.eps
    for row in range(first, first + count):
        for head in range(record.heads):
            at = record.stride * row + 2 * width * head
            other = residual + at if residual else 0
            _add_norm(x + at, other, record.weight, normed + at, total + at, width // 16, width, eps)
