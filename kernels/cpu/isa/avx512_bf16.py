"""AVX512-BF16, with AVX512-VNNI, -VBMI and -VBMI2: AMD's processors from Zen 4 on (2022), Intel's servers
from Sapphire Rapids on (2023)."""

from typing import Any

from llvmlite import ir

from kernels.cpu.isa.avx512_vnni import AVX512VNNI
from kernels.cpu.isa.dot import Dot
from kernels.cpu.isa.vectors import F32S, I16, I16S, LANES, call


class _BFloats(ir.types.Type):
    """A vector of bfloat, a type that llvmlite does not know: no literals, but it can be cast to."""

    def __init__(self, length: int) -> None:
        self.length = length

    def _to_string(self) -> str:
        return f"<{self.length} x bfloat>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloats) and other.length == self.length

    def __hash__(self) -> int:
        return hash((_BFloats, self.length))


class _Pairs(Dot):
    """vdpbf16ps. Denormal numbers count as 0."""

    def __init__(self) -> None:
        super().__init__(F32S)

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        """See Dot."""
        sides = (builder.bitcast(side, _BFloats(2 * LANES)) for side in (weight, value))
        return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", F32S, sums, *sides)


class AVX512BF16(AVX512VNNI):
    """Two bfloat16 are multiplied at once."""

    pairs: Dot = _Pairs()

    def round_to_bfloat16(self, builder: Any, values: Any) -> Any:
        """See Operations; denormal numbers become 0."""
        rounded = call(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", _BFloats(LANES), values)
        return builder.bitcast(rounded, I16S)

    def reciprocal(self, builder: Any, values: Any) -> Any:
        """See Operations; to 2 ** -14 of it."""
        every = ir.Constant(I16, -1)
        return call(builder, "llvm.x86.avx512.rcp14.ps.512", F32S, values, values, every)


OPERATIONS = AVX512BF16()
