"""AVX512-VNNI: Intel's servers from Cascade Lake on (2019), AMD's processors from Zen 4 on."""

from typing import Any

from kernels.cpu.isa.dot import Dot
from kernels.cpu.isa.sets.avx512 import AVX512
from kernels.cpu.isa.vectors import BYTES, I32S, call


class _Quads(Dot):
    """vpdpbusd."""

    def __init__(self) -> None:
        super().__init__(I32S)

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        unsigned, signed = (builder.bitcast(side, BYTES) for side in (value, weight))
        return call(builder, "llvm.x86.avx512.vpdpbusd.512", I32S, sums, unsigned, signed)


class _Nibbles(_Quads):
    """vpdpbusd too: here it is the weights that have no sign."""

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        return super().add(builder, sums, value, weight)


class AVX512VNNI(AVX512):
    """Four bytes are multiplied at once."""

    quads: Dot = _Quads()
    nibbles: Dot = _Nibbles()


OPERATIONS = AVX512VNNI()
