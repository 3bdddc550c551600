"""AVX-512 with its F, BW, VL and DQ parts: 32 registers of 512 bits. Intel's servers have it from Skylake on
(2017)."""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from kernels.cpu.isa.dot import I16_PAIRS, Dot, IntegerDot
from kernels.cpu.isa.operations import Tiles
from kernels.cpu.isa.sets.x86_64 import X86
from kernels.cpu.isa.vectors import BYTES, F32S, I16, I32, I32S, call, opaque, splat, store_lanes

_EVERY, _TO_NEAREST = ir.Constant(I16, -1), ir.Constant(I32, 4)


class _PairsOfWords(IntegerDot):
    """vpmaddwd."""

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        return opaque(builder, super().add(builder, sums, weight, value), "v")

    def multiply_pairs(self, builder: Any, one: Any, other: Any) -> Any:
        sides = (builder.bitcast(side, I16_PAIRS) for side in (one, other))
        return call(builder, "llvm.x86.avx512.pmaddw.d.512", I32S, *sides)


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
        return self._add_sums(builder, sums, builder.add(first, second))

    def _sums_of_two(self, builder: Any, weight: Any, value: Any) -> Any:
        """Of products, 16 bits each."""
        sides = (builder.bitcast(side, BYTES) for side in (weight, value))
        return call(builder, "llvm.x86.avx512.pmaddubs.w.512", I16_PAIRS, *sides)

    def _add_sums(self, builder: Any, sums: Any, pairs: Any) -> Any:
        """Adds neighbours of 16 bits to the sums."""
        ones = splat(I16_PAIRS, 1)
        return builder.add(sums, call(builder, "llvm.x86.avx512.pmaddw.d.512", I32S, pairs, ones))


_WORDS = _PairsOfWords()


class AVX512(X86):
    """A vector takes one register."""

    block = Tiles(8, ((4, 4), (2, 2), (1, 1)), prefetches=True, distance=-1)
    strip = block
    block_rows = 1 << 30
    rereads_weights = False
    score_tiles = {3: 2, 4: 2, 6: 2, 8: 1}
    mix_vectors = {3: 4, 4: 4, 6: 2, 8: 2}
    quads: Dot = _WORDS
    nibbles: Dot = _Nibbles()

    def multiply_small(self, builder: Any, one: Any, other: Any) -> Any:
        """Half of each pair is 0, and vpmulld takes twice as long."""
        return _WORDS.multiply_pairs(builder, one, other)

    def from_table(self, builder: Any, table: Sequence[int], indexes: Any) -> Any:
        """vpshufb."""
        bytes_, each = ir.Constant(BYTES, 4 * list(table)), builder.bitcast(indexes, BYTES)
        return builder.bitcast(call(builder, "llvm.x86.avx512.pshuf.b.512", BYTES, bytes_, each), I32S)

    def pack_bytes(self, builder: Any, first: Any, second: Any) -> Any:
        """vpackuswb."""
        return call(builder, "llvm.x86.avx512.packuswb.512", BYTES, first, second)

    def hide(self, builder: Any, values: Any) -> Any:
        return opaque(builder, values, "v")

    def round_to_int(self, builder: Any, values: Any) -> Any:
        name = "llvm.x86.avx512.mask.cvtps2dq.512"
        return call(builder, name, I32S, values, splat(I32S, 0), _EVERY, _TO_NEAREST)

    def scale(self, builder: Any, values: Any, exponents: Any) -> Any:
        name = "llvm.x86.avx512.mask.scalef.ps.512"
        return call(builder, name, F32S, values, exponents, values, _EVERY, _TO_NEAREST)

    def store_first(self, builder: Any, values: Any, address: Any, mask: Any, whole: Any) -> None:
        store_lanes(builder, values, address, mask)


OPERATIONS = AVX512()
