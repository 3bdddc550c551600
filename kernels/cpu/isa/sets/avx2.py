"""AVX2, FMA and F16C: 16 registers of 256 bits. Intel has them from Haswell on (2013), AMD from Excavator
(2015). AVX-VNNI beside it: Intel's processors without AVX-512, from Alder Lake on
(2021).
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from kernels.cpu.isa.dot import Dot, IntegerDot
from kernels.cpu.isa.operations import halves_of, joined
from kernels.cpu.isa.sets.x86 import X86, ByteSums, add_products_of_bytes
from kernels.cpu.isa.vectors import BYTES, I16, I32, call, opaque, splat

_BYTES = ir.VectorType(ir.IntType(8), 32)
_INT16S, _INT32S = ir.VectorType(I16, 16), ir.VectorType(I32, 8)


class _PairsOfWords(IntegerDot):
    """vpmaddwd: unlike vpmaddubsw, its sums are exact."""

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        total = super().add(builder, sums, weight, value)
        return joined(builder, *(opaque(builder, half, "x") for half in halves_of(builder, total)))

    def multiply_pairs(self, builder: Any, one: Any, other: Any) -> Any:
        name, parts = "llvm.x86.avx2.pmadd.wd", []
        for sides in zip(halves_of(builder, one), halves_of(builder, other), strict=True):
            parts.append(call(builder, name, _INT32S, *(builder.bitcast(side, _INT16S) for side in sides)))
        return joined(builder, *parts)


class _Nibbles(ByteSums):
    """Of two registers."""

    def sums_of_two(self, builder: Any, weight: Any, value: Any) -> list[Any]:
        halves = zip(halves_of(builder, weight), halves_of(builder, value), strict=True)
        sides = ([builder.bitcast(side, _BYTES) for side in both] for both in halves)
        return [call(builder, "llvm.x86.avx2.pmadd.ub.sw", _INT16S, *both) for both in sides]

    def add_sums(self, builder: Any, sums: Any, registers: list[Any]) -> Any:
        ones = splat(_INT16S, 1)
        fours = (call(builder, "llvm.x86.avx2.pmadd.wd", _INT32S, half, ones) for half in registers)
        return builder.add(sums, joined(builder, *fours))


_WORDS = _PairsOfWords()


class AVX2(X86):
    """A vector takes two registers."""

    masked_stores_whole = False  # AMD's processors take a dozen cycles for vmaskmovps to memory
    quads: Dot = _WORDS
    nibbles: Dot = _Nibbles()

    def multiply_small(self, builder: Any, one: Any, other: Any) -> Any:
        """Half of each pair is 0, and vpmulld takes twice as long."""
        return _WORDS.multiply_pairs(builder, one, other)

    def from_table(self, builder: Any, table: Sequence[int], indexes: Any) -> Any:
        """vpshufb."""
        bytes_, parts = ir.Constant(_BYTES, 2 * list(table)), []
        for half in halves_of(builder, indexes):
            found = call(builder, "llvm.x86.avx2.pshuf.b", _BYTES, bytes_, builder.bitcast(half, _BYTES))
            parts.append(builder.bitcast(found, _INT32S))
        return joined(builder, *parts)

    def pack_bytes(self, builder: Any, first: Any, second: Any) -> Any:
        """vpackuswb."""
        sides = zip(halves_of(builder, first), halves_of(builder, second), strict=True)
        name = "llvm.x86.avx2.packuswb"
        return joined(builder, *(call(builder, name, _BYTES, *halves) for halves in sides))

    def look_up(self, builder: Any, table: Any, indexes: Any) -> Any:
        """vpshufb, which makes 0 of what has the highest bit."""
        name, each = "llvm.x86.avx2.pshuf.b", builder.and_(indexes, splat(BYTES, 15))
        sides = zip(halves_of(builder, table), halves_of(builder, each), strict=True)
        return joined(builder, *(call(builder, name, _BYTES, *halves) for halves in sides))

    def hide(self, builder: Any, values: Any) -> Any:
        return joined(builder, *(opaque(builder, half, "x") for half in halves_of(builder, values)))

    def round_to_int(self, builder: Any, values: Any) -> Any:
        name = "llvm.x86.avx.cvt.ps2dq.256"
        return joined(builder, *(call(builder, name, _INT32S, half) for half in halves_of(builder, values)))


class _VnniQuads(Dot):
    """vpdpbusd."""

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        name, parts = "llvm.x86.avx512.vpdpbusd.256", []
        sides = (halves_of(builder, side) for side in (sums, value, weight))
        for total, unsigned, signed in zip(*sides, strict=True):
            parts.append(add_products_of_bytes(builder, name, total, unsigned, signed))
        return joined(builder, *parts)


class _VnniNibbles(_VnniQuads):
    """vpdpbusd too: here it is the weights that have no sign."""

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        return super().add(builder, sums, value, weight)


class AVX2VNNI(AVX2):
    """Four bytes are multiplied at once."""

    quads: Dot = _VnniQuads()
    nibbles: Dot = _VnniNibbles()


SETS = {"avx2": AVX2(), "avx2_vnni": AVX2VNNI()}
