"""AVX512-BF16, with AVX512-VNNI, -VBMI and -VBMI2: AMD's processors from Zen 4 on (2022), Intel's servers
from Sapphire Rapids on (2023)."""

from typing import Any

from llvmlite import ir

from kernels.cpu.isa.dot import Dot
from kernels.cpu.isa.sets.avx512_vnni import AVX512VNNI
from kernels.cpu.isa.sets.bfloat import BFloats
from kernels.cpu.isa.vectors import BYTES, F32S, I16, I16S, LANES, call

HALVES = ir.VectorType(I16, 2 * LANES)
"""Two bfloat16 a lane, as integers."""


def packed_bytes(builder: Any, first: Any, second: Any) -> Any:
    """Two HALVES of numbers below 256 as BYTES: eight of the first and eight of the second, in turns."""
    return call(builder, "llvm.x86.avx512.packuswb.512", BYTES, first, second)


def bytes_of_table(builder: Any, table: Any, indexes: Any) -> Any:
    """table[indexes % 64], of BYTES."""
    return call(builder, "llvm.x86.avx512.permvar.qi.512", BYTES, table, indexes)


def replaced(builder: Any, values: Any, listed: Any, chosen: Any) -> Any:
    """HALVES, of which the chosen ones are the first that are listed, in their order."""
    return call(builder, "llvm.x86.avx512.mask.expand.v32i16", HALVES, listed, values, chosen)


def hidden(builder: Any, values: Any) -> Any:
    """The same HALVES, of which LLVM does not know that: else it computes what both branches need before
    the branch, for all words at once, and the registers do not suffice."""
    return builder.asm(ir.FunctionType(HALVES, [HALVES]), "", "=v,0", [values], False)


class _Pairs(Dot):
    """vdpbf16ps. Denormal numbers count as 0."""

    def __init__(self) -> None:
        super().__init__(F32S)

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        """See Dot."""
        sides = (builder.bitcast(side, BFloats(2 * LANES)) for side in (weight, value))
        return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", F32S, sums, *sides)


class AVX512BF16(AVX512VNNI):
    """Two bfloat16 are multiplied at once."""

    pairs: Dot = _Pairs()

    def round_to_bfloat16(self, builder: Any, values: Any) -> Any:
        """See Operations; denormal numbers become 0."""
        rounded = call(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", BFloats(LANES), values)
        return builder.bitcast(rounded, I16S)

    def reciprocal(self, builder: Any, values: Any) -> Any:
        """See Operations; to 2 ** -14 of it."""
        every = ir.Constant(I16, -1)
        return call(builder, "llvm.x86.avx512.rcp14.ps.512", F32S, values, values, every)


OPERATIONS = AVX512BF16()
