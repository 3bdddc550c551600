"""silu(gate) * up in bfloat16, rounded once, 16 values per step. Widths are multiples of 16."""

from typing import Any

from llvmlite import ir

from kernels.cpu import types
from kernels.cpu.compiler import operation
from kernels.cpu.language import intrinsic
from kernels.cpu.vectors import F32S, LANES, exp, read_i64, repeat, rounded, store, widened, word


@intrinsic(types.void(*[types.int64] * 4))
def _gated_silu(builder: Any, gate: Any, up: Any, out: Any, vectors: Any) -> None:
    """One row."""

    def write(v: Any, nothing: list[Any]) -> list[Any]:
        at = builder.mul(v, word(32))
        x = widened(builder, builder.add(gate, at))
        power = exp(builder, builder.fsub(ir.Constant(F32S, [-0.0] * LANES), x))
        silu = builder.fdiv(x, builder.fadd(power, ir.Constant(F32S, [1.0] * LANES)))
        product = builder.fmul(silu, widened(builder, builder.add(up, at)))
        store(builder, rounded(builder, product), builder.add(out, at))
        return nothing

    repeat(builder, vectors, [], write)


@operation
def gated_silu(record: int, first: int, count: int, thread: int) -> None:
    """record: rows, address of [rows, 2 * width], of [rows, width], width."""
    gate_up, out, width = read_i64(record + 16), read_i64(record + 24), read_i64(record + 32)
    for row in range(first, first + count):
        gate = gate_up + 4 * width * row
        _gated_silu(gate, gate + 2 * width, out + 2 * width * row, width // 16)
