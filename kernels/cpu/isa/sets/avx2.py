"""AVX2, FMA and F16C: 16 registers of 256 bits. Intel has them from Haswell on (2013), AMD from Excavator
(2015)."""

from collections.abc import Iterable, Sequence
from typing import Any

from llvmlite import ir

from kernels.cpu.isa.dot import Dot, IntegerDot
from kernels.cpu.isa.operations import halves_of, joined
from kernels.cpu.isa.sets.x86_64 import X86
from kernels.cpu.isa.vectors import BYTES, I16, I32, I32S, call, opaque, splat

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


class _Nibbles(Dot):
    """vpmaddubsw, and vpmaddwd by 1. Two products of 7 bits by 8 never exceed 16 bits, nor do four of 6."""

    takes_bytes = False

    def __init__(self) -> None:
        super().__init__(I32S)

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        return self._add_sums(builder, sums, self._sums_of_two(builder, weight, value))

    def add_two(self, builder: Any, sums: Any, weights: Any, values: Any) -> Any:
        first, second = (
            self._sums_of_two(builder, weight, value) for weight, value in zip(weights, values, strict=True)
        )
        both = (builder.add(one, other) for one, other in zip(first, second, strict=True))
        return self._add_sums(builder, sums, both)

    def _sums_of_two(self, builder: Any, weight: Any, value: Any) -> list[Any]:
        """Of products, 16 bits each; of each half of the words."""
        halves = zip(halves_of(builder, weight), halves_of(builder, value), strict=True)
        return [
            call(
                builder,
                "llvm.x86.avx2.pmadd.ub.sw",
                _INT16S,
                *(builder.bitcast(side, _BYTES) for side in sides),
            )
            for sides in halves
        ]

    def _add_sums(self, builder: Any, sums: Any, halves: Iterable[Any]) -> Any:
        """Adds neighbours of 16 bits to the sums."""
        ones = splat(_INT16S, 1)
        fours = (call(builder, "llvm.x86.avx2.pmadd.wd", _INT32S, half, ones) for half in halves)
        return builder.add(sums, joined(builder, *fours))


_WORDS = _PairsOfWords()


class AVX2(X86):
    """A vector takes two registers."""

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


OPERATIONS = AVX2()
