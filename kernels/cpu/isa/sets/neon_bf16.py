"""NEON with products of bfloat16 (BF16) and of signed by unsigned bytes (I8MM): Neoverse V1 and N2,
Cortex-A510 and Apple's M2 (2021 and 2022), and later.

Of BF16's instructions, bfmlalb and bfmlalt round each product once, with its sum, as other sets do, so that
bits are the same. bfdot and bfmmla multiply more at once, but count denormal numbers as zero and round to
odd.
"""

from typing import Any

from llvmlite import ir

from kernels.cpu.isa.dot import Dot
from kernels.cpu.isa.sets.bfloat import BFloats
from kernels.cpu.isa.sets.neon import of_quarters, quarters_of
from kernels.cpu.isa.sets.neon_dot import NEONDot, dot_of_bytes
from kernels.cpu.isa.vectors import F32, F32S, I16S, I32S, LANES, call

_FLOATS = ir.VectorType(F32, 4)


class _Pairs(Dot):
    """bfmlalt multiplies the second of each pair, bfmlalb the first."""

    def __init__(self) -> None:
        super().__init__(F32S)

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        added = []
        sides = (quarters_of(builder, side) for side in (sums, weight, value))
        for total, *words in zip(*sides, strict=True):
            pairs = [builder.bitcast(side, BFloats(8)) for side in words]
            for name in ("llvm.aarch64.neon.bfmlalt", "llvm.aarch64.neon.bfmlalb"):
                total = call(builder, name, _FLOATS, total, *pairs)
            added.append(total)
        return of_quarters(builder, added)


class _Quads(Dot):
    """usdot."""

    def __init__(self) -> None:
        super().__init__(I32S)

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        return dot_of_bytes(builder, "llvm.aarch64.neon.usdot.v4i32.v16i8", sums, value, weight)


class NEONBF16(NEONDot):
    """Pairs of bfloat16 are multiplied as they are."""

    pairs: Dot = _Pairs()
    quads: Dot = _Quads()

    def round_to_bfloat16(self, builder: Any, values: Any) -> Any:
        """bfcvtn."""
        return builder.bitcast(builder.fptrunc(values, BFloats(LANES)), I16S)


OPERATIONS = NEONBF16()
