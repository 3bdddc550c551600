"""silu(gate) * up in bfloat16, rounded once, 16 values per step. Widths are multiples of 16.

    silu(x) = x / (1 + e ** -x), before it is rounded to 1.7e-4 of it: e ** -x to 1.0e-4
              (kernels.cpu.isa.exp), a reciprocal to 2 ** -14 or better. Rounding may cost
              3.9e-3.

Where e ** -x is infinite, some way below x = -88, the result is 0.
"""

import math
from typing import Any

from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.elementwise.records import GatedSiluRecord
from kernels.cpu.isa.exp import BIAS, EXPONENT_UNIT, rough_power
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.vectors import F32S, LANES, call, repeat, store, widened, word


def _silu(builder: Any, x: Any) -> Any:
    """F32S. NaN of NaN and, as the formula has it, of -inf."""
    unit, one, infinite = (
        ir.Constant(F32S, [value * EXPONENT_UNIT] * LANES) for value in (-math.log2(math.e), BIAS, 255)
    )
    bits = call(builder, "llvm.fma.v16f32", F32S, x, unit, one)
    bits = builder.select(builder.fcmp_ordered("<", bits, infinite), bits, infinite)
    series, power = rough_power(builder, bits)
    divisor = call(builder, "llvm.fma.v16f32", F32S, series, power, ir.Constant(F32S, [1.0] * LANES))
    return builder.fmul(x, OPERATIONS.reciprocal(builder, divisor))


@intrinsic(types.void(*[types.int64] * 4))
def _gated_silu(builder: Any, gate: Any, up: Any, out: Any, vectors: Any) -> None:
    """One row."""

    def write(v: Any, nothing: list[Any]) -> list[Any]:
        at = builder.mul(v, word(32))
        silu = _silu(builder, widened(builder, builder.add(gate, at)))
        product = builder.fmul(silu, widened(builder, builder.add(up, at)))
        store(builder, OPERATIONS.round_to_bfloat16(builder, product), builder.add(out, at))
        return nothing

    repeat(builder, vectors, [], write)


@operation
def gated_silu(record: GatedSiluRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    width = record.width
    for row in range(first, first + count):
        gate = record.gate_up + 4 * width * row
        _gated_silu(gate, gate + 2 * width, record.out + 2 * width * row, width // 16)
