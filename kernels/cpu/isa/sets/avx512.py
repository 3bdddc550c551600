"""AVX-512: 32 registers of 512 bits.

    AVX512      its F, BW, VL and DQ parts: Intel's servers from Skylake on (2017)
    AVX512VNNI  Intel's servers from Cascade Lake on (2019), AMD's processors from Zen 4 on
    AVX512VBMI  with VBMI2: Intel's servers from Ice Lake on (2021), AMD's processors from Zen 4 on
    AVX512BF16  AMD's processors from Zen 4 on (2022), Intel's servers from Sapphire Rapids on (2023)

Without BF16, two products and sums of float32 take the place of a dot product of bfloat16. Intel's processors
with AVX512-BF16 multiply faster so: Sapphire Rapids begins two of these in a cycle, and a dot product in
every second one (benchmarks.cpu_peaks at cf3da1c1).
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from kernels.cpu.isa.dot import I16_PAIRS, Dot, IntegerDot
from kernels.cpu.isa.e4m3 import bfloat16_of
from kernels.cpu.isa.operations import Tiles
from kernels.cpu.isa.sets.x86 import X86, ByteSums, add_products_of_bytes
from kernels.cpu.isa.vectors import (
    BYTES,
    F32S,
    I16,
    I16S,
    I32,
    I32S,
    LANES,
    BFloats,
    call,
    opaque,
    splat,
)

_EVERY, _TO_NEAREST = ir.Constant(I16, -1), ir.Constant(I32, 4)


class _PairsOfWords(IntegerDot):
    """vpmaddwd."""

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        return opaque(builder, super().add(builder, sums, weight, value), "v")

    def multiply_pairs(self, builder: Any, one: Any, other: Any) -> Any:
        sides = (builder.bitcast(side, I16_PAIRS) for side in (one, other))
        return call(builder, "llvm.x86.avx512.pmaddw.d.512", I32S, *sides)


class _Nibbles(ByteSums):
    """Of one register."""

    def sums_of_two(self, builder: Any, weight: Any, value: Any) -> list[Any]:
        sides = (builder.bitcast(side, BYTES) for side in (weight, value))
        return [call(builder, "llvm.x86.avx512.pmaddubs.w.512", I16_PAIRS, *sides)]

    def add_sums(self, builder: Any, sums: Any, registers: list[Any]) -> Any:
        ones = splat(I16_PAIRS, 1)
        return builder.add(sums, call(builder, "llvm.x86.avx512.pmaddw.d.512", I32S, *registers, ones))


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
    masked = F32S, I32S, I16S

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


class _VnniQuads(Dot):
    """vpdpbusd."""

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        return add_products_of_bytes(builder, "llvm.x86.avx512.vpdpbusd.512", sums, value, weight)


class _VnniNibbles(_VnniQuads):
    """vpdpbusd too: here it is the weights that have no sign."""

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        return super().add(builder, sums, value, weight)


class AVX512VNNI(AVX512):
    """Four bytes are multiplied at once."""

    quads: Dot = _VnniQuads()
    nibbles: Dot = _VnniNibbles()


HALVES = ir.VectorType(I16, 2 * LANES)
"""Two bfloat16 a lane, as integers."""


def _bytes_of_tables(builder: Any, tables: tuple[list[int], list[int]], indexes: Any) -> Any:
    """table[indexes % 128], of BYTES: of the first table in even lanes, of the second one in odd lanes."""
    name, odd = "llvm.x86.avx512.vpermi2var.qi.512", [lane % 2 for lane in range(4 * LANES)]
    even, other = (
        call(builder, name, BYTES, ir.Constant(BYTES, table[:64]), indexes, ir.Constant(BYTES, table[64:]))
        for table in tables
    )
    return builder.select(ir.Constant(ir.VectorType(ir.IntType(1), 4 * LANES), odd), other, even)


class AVX512VBMI(AVX512VNNI):
    """Weights in 12 bits, and numbers of 8 bits, are unpacked by tables of bytes."""

    def look_up(self, builder: Any, table: Any, indexes: Any) -> Any:
        """vpermb takes places below 64."""
        return call(builder, "llvm.x86.avx512.permvar.qi.512", BYTES, table, indexes)

    def expand(self, builder: Any, values: Any, listed: Any, chosen: Any) -> Any:
        """vpexpandw."""
        return call(builder, "llvm.x86.avx512.mask.expand.v32i16", HALVES, listed, values, chosen)

    def widen_e4m3(self, builder: Any, codes: Any) -> Any:
        """Each byte looks up both bytes of its bfloat16."""
        count = codes.type.count
        twice = ir.VectorType(ir.IntType(32), 4 * LANES)
        lanes = [min(lane // 2, count - 1) for lane in range(4 * LANES)]
        indexes = builder.shuffle_vector(codes, codes, ir.Constant(twice, lanes))
        tables = (
            [bfloat16_of(code) & 0xFF for code in range(128)],
            [bfloat16_of(code) >> 8 for code in range(128)],
        )
        found = builder.bitcast(_bytes_of_tables(builder, tables, indexes), HALVES)
        signs = builder.and_(builder.bitcast(indexes, HALVES), splat(HALVES, -(1 << 15)))
        widened = builder.or_(found, signs)
        if count == 2 * LANES:
            return widened
        first = ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(count)))
        return builder.shuffle_vector(widened, widened, first)


class _Pairs(Dot):
    """vdpbf16ps. Denormal numbers count as 0."""

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


SETS = {
    "avx512": AVX512(),
    "avx512_vnni": AVX512VNNI(),
    "avx512_vbmi": AVX512VBMI(),
    "avx512_bf16": AVX512BF16(),
}
