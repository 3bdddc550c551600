"""AVX512-VNNI with AVX512-VBMI and -VBMI2: Intel's servers from Ice Lake on (2021), AMD's processors from Zen
4 on.

Two products and sums of float32 take the place of a dot product of bfloat16. Intel's processors with
AVX512-BF16 multiply faster so: Sapphire Rapids begins two of these in a cycle, and a dot product in every
second one (benchmarks.cpu_peaks at cf3da1c1).
"""

from typing import Any

from llvmlite import ir

from kernels.cpu.isa.e4m3 import bfloat16_of
from kernels.cpu.isa.sets.avx512_vnni import AVX512VNNI
from kernels.cpu.isa.vectors import BYTES, I16, LANES, call, splat

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


OPERATIONS = AVX512VBMI()
