"""NEON with dot products of four bytes: Cortex-A75 and Neoverse N1 (2018) and later, Apple's M1.

Both sides of an instruction have signs, or neither has.
"""

from typing import Any

from llvmlite import ir

from kernels.cpu.isa.dot import Dot
from kernels.cpu.isa.sets.neon import NEON, of_quarters, quarters_of
from kernels.cpu.isa.vectors import I32, I32S, call, splat

BYTES, INT32S = ir.VectorType(ir.IntType(8), 16), ir.VectorType(I32, 4)
_SIGNS = -0x7F7F7F80
"""The upper bits of four bytes: without sign, a byte is by 128 more than with it, if that is flipped."""
_ONES = 0x01010101


def dot_of_bytes(builder: Any, name: str, sums: Any, one: Any, other: Any) -> Any:
    """An instruction that adds products of four bytes to sums, I32S. name: LLVM's."""
    sides = (quarters_of(builder, side) for side in (sums, one, other))
    return of_quarters(
        builder,
        [
            call(builder, name, INT32S, total, builder.bitcast(left, BYTES), builder.bitcast(right, BYTES))
            for total, left, right in zip(*sides, strict=True)
        ],
    )


class SignedBytes(Dot):
    """sdot."""

    takes_bytes = False

    def __init__(self) -> None:
        super().__init__(I32S)

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        """Weights of 4 bits are signed bytes too."""
        return dot_of_bytes(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", sums, weight, value)


class _Quads(SignedBytes):
    """sdot of inputs less 128, and 128 times the sum of weights, which all rows of a tile share."""

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        total = super().add(builder, splat(I32S, 0), weight, splat(I32S, _ONES))
        sums = builder.add(sums, builder.shl(total, splat(I32S, 7)))
        return super().add(builder, sums, weight, builder.xor(value, splat(I32S, _SIGNS)))


class NEONDot(NEON):
    """Four bytes are multiplied at once."""

    quads: Dot = _Quads()
    nibbles: Dot = SignedBytes()


OPERATIONS = NEONDot()
