"""NEON: 32 registers of 128 bits, of which a vector takes four.

    NEON      every aarch64 processor
    NEONDot   dot products of four bytes: Cortex-A75 and Neoverse N1 (2018) and later, Apple's M1
    NEONBF16  products of bfloat16 (BF16) and of signed by unsigned bytes (I8MM): Neoverse V1 and N2,
              Cortex-A510 and Apple's M2 (2021 and 2022), and later

A tile's sums take 24 registers, as with AVX2, whose 16 registers hold twice as much each: tiles are the same.
Both sides of NEONDot's instruction have signs, or neither has.

Of BF16's instructions, bfmlalb and bfmlalt round each product once, with its sum, as other sets do, so that
bits are the same. bfdot and bfmmla multiply more at once, but count denormal numbers as zero and round to
odd.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from kernels.cpu.isa.dot import Dot
from kernels.cpu.isa.operations import Operations, halves_of, joined
from kernels.cpu.isa.vectors import (
    F32,
    F32S,
    I16S,
    I32,
    I32S,
    LANES,
    BFloats,
    call,
    splat,
)

_INT32S, _BYTES = ir.VectorType(I32, 4), ir.VectorType(ir.IntType(8), 16)
_FULL_SYSTEM = ir.Constant(I32, 15)
"""What an instruction barrier is for: it has no other."""


def quarters_of(builder: Any, values: Any) -> list[Any]:
    """The registers of a vector, from its first lanes to its last."""
    return [quarter for half in halves_of(builder, values) for quarter in halves_of(builder, half)]


def of_quarters(builder: Any, quarters: Sequence[Any]) -> Any:
    """A vector of four registers."""
    return joined(builder, *(joined(builder, *quarters[first : first + 2]) for first in (0, 2)))


class NEON(Operations):
    """A vector takes four registers."""

    masked = ()

    def pause(self, builder: Any) -> None:
        """An instruction barrier, since a yield is over at once."""
        call(builder, "llvm.aarch64.isb", ir.VoidType(), _FULL_SYSTEM)

    def from_table(self, builder: Any, table: Sequence[int], indexes: Any) -> Any:
        """tbl."""
        bytes_, quarters = ir.Constant(_BYTES, list(table)), []
        for quarter in quarters_of(builder, indexes):
            each = builder.bitcast(quarter, _BYTES)
            found = call(builder, "llvm.aarch64.neon.tbl1.v16i8", _BYTES, bytes_, each)
            quarters.append(builder.bitcast(found, _INT32S))
        return of_quarters(builder, quarters)

    def round_to_int(self, builder: Any, values: Any) -> Any:
        """The instruction makes 0 of NaN, and of large numbers the nearest int32."""
        name = "llvm.aarch64.neon.fcvtns.v4i32.v4f32"
        rounded = [call(builder, name, _INT32S, quarter) for quarter in quarters_of(builder, values)]
        fits = builder.fcmp_ordered("<", values, splat(F32S, 2.0**31))
        return builder.select(fits, of_quarters(builder, rounded), splat(I32S, -(2**31)))


_SIGNS = -0x7F7F7F80
"""The upper bits of four bytes: without sign, a byte is by 128 more than with it, if that is flipped."""
_ONES = 0x01010101


def dot_of_bytes(builder: Any, name: str, sums: Any, one: Any, other: Any) -> Any:
    """An instruction that adds products of four bytes to sums, I32S. name: LLVM's."""
    sides = (quarters_of(builder, side) for side in (sums, one, other))
    return of_quarters(
        builder,
        [
            call(builder, name, _INT32S, total, builder.bitcast(left, _BYTES), builder.bitcast(right, _BYTES))
            for total, left, right in zip(*sides, strict=True)
        ],
    )


class SignedBytes(Dot):
    """sdot."""

    takes_bytes = False

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


_FLOATS = ir.VectorType(F32, 4)


class _Pairs(Dot):
    """bfmlalt multiplies the second of each pair, bfmlalb the first."""

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        added = []
        sides = (quarters_of(builder, side) for side in (sums, weight, value))
        for total, *words in zip(*sides, strict=True):
            pairs = [builder.bitcast(side, BFloats(8)) for side in words]
            for name in ("llvm.aarch64.neon.bfmlalt", "llvm.aarch64.neon.bfmlalb"):
                total = call(builder, name, _FLOATS, total, *pairs)
            added.append(total)
        return of_quarters(builder, added)


class _SignedQuads(Dot):
    """usdot."""

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        return dot_of_bytes(builder, "llvm.aarch64.neon.usdot.v4i32.v16i8", sums, value, weight)


class NEONBF16(NEONDot):
    """Pairs of bfloat16 are multiplied as they are."""

    pairs: Dot = _Pairs()
    quads: Dot = _SignedQuads()

    def round_to_bfloat16(self, builder: Any, values: Any) -> Any:
        """bfcvtn."""
        return builder.bitcast(builder.fptrunc(values, BFloats(LANES)), I16S)


SETS = {"neon": NEON(), "neon_dot": NEONDot(), "neon_bf16": NEONBF16()}
