"""silu(gate) * up in bfloat16, rounded once, 16 values per step. Widths are multiples of 16."""

from typing import Any

from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

from kernels.cpu.compiler import FEW_VALUES, compiled
from kernels.cpu.vectors import F32S, LANES, exp, repeat, rounded, store, widened, word


@intrinsic
def _gated_silu(typing: Any, gate: Any, up: Any, out: Any, vectors: Any) -> Any:
    """One row."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        gate, up, out, vectors = args

        def write(v: Any, nothing: list[Any]) -> list[Any]:
            at = builder.mul(v, word(32))
            x = widened(builder, builder.add(gate, at))
            power = exp(builder, builder.fsub(ir.Constant(F32S, [-0.0] * LANES), x))
            silu = builder.fdiv(x, builder.fadd(power, ir.Constant(F32S, [1.0] * LANES)))
            product = builder.fmul(silu, widened(builder, builder.add(up, at)))
            store(builder, rounded(builder, product), builder.add(out, at))
            return nothing

        repeat(builder, vectors, [], write)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@njit(error_model="numpy")
def _row(row: int, gate_up: int, out: int, width: int) -> None:
    gate = gate_up + 4 * width * row
    _gated_silu(gate, gate + 2 * width, out + 2 * width * row, width // 16)


@compiled("void(int64, int64, int64, int64)")
def gated_silu_bf16(gate_up: int, out: int, rows: int, width: int) -> None:
    """gate_up: address of [rows, 2 * width], out: of [rows, width]."""
    if rows * width < FEW_VALUES:
        for row in range(rows):
            _row(row, gate_up, out, width)
    else:
        for row in prange(rows):
            _row(row, gate_up, out, width)
