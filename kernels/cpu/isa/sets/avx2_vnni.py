"""AVX-VNNI beside AVX2: Intel's processors without AVX-512, from Alder Lake on (2021)."""

from typing import Any

from llvmlite import ir

from kernels.cpu.isa.dot import Dot
from kernels.cpu.isa.operations import halves_of, joined
from kernels.cpu.isa.sets.avx2 import AVX2
from kernels.cpu.isa.vectors import I32, I32S, call

_BYTES, _INT32S = ir.VectorType(ir.IntType(8), 32), ir.VectorType(I32, 8)


class _Quads(Dot):
    """vpdpbusd."""

    def __init__(self) -> None:
        super().__init__(I32S)

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        name, parts = "llvm.x86.avx512.vpdpbusd.256", []
        sides = (halves_of(builder, side) for side in (sums, value, weight))
        for total, unsigned, signed in zip(*sides, strict=True):
            bytes_ = (builder.bitcast(side, _BYTES) for side in (unsigned, signed))
            parts.append(call(builder, name, _INT32S, total, *bytes_))
        return joined(builder, *parts)


class _Nibbles(_Quads):
    """vpdpbusd too: here it is the weights that have no sign."""

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        return super().add(builder, sums, value, weight)


class AVX2VNNI(AVX2):
    """Four bytes are multiplied at once."""

    quads: Dot = _Quads()
    nibbles: Dot = _Nibbles()


OPERATIONS = AVX2VNNI()
