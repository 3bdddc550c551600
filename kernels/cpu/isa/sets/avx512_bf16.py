"""AVX512-BF16, with AVX512-VNNI, -VBMI and -VBMI2: AMD's processors from Zen 4 on (2022), Intel's servers
from Sapphire Rapids on (2023), which have it and are faster without (kernels.cpu.isa.sets.avx512_vbmi)."""

from typing import Any

from llvmlite import ir

from kernels.cpu.isa.dot import Dot
from kernels.cpu.isa.sets.avx512_vbmi import AVX512VBMI
from kernels.cpu.isa.sets.bfloat import BFloats
from kernels.cpu.isa.vectors import F32S, I16, I16S, LANES, call


class _Pairs(Dot):
    """vdpbf16ps. Denormal numbers count as 0."""

    def __init__(self) -> None:
        super().__init__(F32S)

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        sides = (builder.bitcast(side, BFloats(2 * LANES)) for side in (weight, value))
        return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", F32S, sums, *sides)


class AVX512BF16(AVX512VBMI):
    """Two bfloat16 are multiplied at once."""

    pairs: Dot = _Pairs()

    def round_to_bfloat16(self, builder: Any, values: Any) -> Any:
        """Denormal numbers become 0."""
        rounded = call(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", BFloats(LANES), values)
        return builder.bitcast(rounded, I16S)

    def reciprocal(self, builder: Any, values: Any) -> Any:
        """Accurate to 2 ** -14, relative."""
        every = ir.Constant(I16, -1)
        return call(builder, "llvm.x86.avx512.rcp14.ps.512", F32S, values, values, every)


OPERATIONS = AVX512BF16()
