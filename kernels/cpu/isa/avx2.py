"""AVX2, FMA and F16C: 16 registers of 256 bits. Intel has them from Haswell on (2013), AMD from Excavator
(2015)."""

from typing import Any

from llvmlite import ir

from kernels.cpu.isa.dot import Dot, IntegerDot
from kernels.cpu.isa.operations import Operations, halves_of, joined
from kernels.cpu.isa.vectors import I16, I32, call

_INT16S, _INT32S = ir.VectorType(I16, 16), ir.VectorType(I32, 8)


class _PairsOfWords(IntegerDot):
    """vpmaddwd: unlike vpmaddubsw, its sums are exact."""

    def multiply_pairs(self, builder: Any, one: Any, other: Any) -> Any:
        """See IntegerDot."""
        name, parts = "llvm.x86.avx2.pmadd.wd", []
        for sides in zip(halves_of(builder, one), halves_of(builder, other), strict=True):
            parts.append(call(builder, name, _INT32S, *(builder.bitcast(side, _INT16S) for side in sides)))
        return joined(builder, *parts)


class AVX2(Operations):
    """A vector takes two registers."""

    quads: Dot = _PairsOfWords()

    def round_to_int(self, builder: Any, values: Any) -> Any:
        """See Operations."""
        name = "llvm.x86.avx.cvt.ps2dq.256"
        return joined(builder, *(call(builder, name, _INT32S, half) for half in halves_of(builder, values)))


OPERATIONS = AVX2()
