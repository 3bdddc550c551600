"""Rows of bfloat16 as 8-bit integers with a scale of their own, and rows of quantized weights as bfloat16;
see kernels.cpu.matmul.int8."""

from typing import Any

from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.vectors import (
    F32,
    F32S,
    I8S,
    I32,
    I32S,
    LANES,
    broadcast,
    call,
    read_f32,
    read_i64,
    read_u32,
    repeat,
    store,
    widened,
    word,
    write_u16,
)
from kernels.cpu.matmul.records import QuantizedRowsRecord, QuantizeRecord
from kernels.cpu.runtime.work_split import COLUMNS


@intrinsic(types.void(*[types.int64] * 4))
def _quantize(builder: Any, x: Any, out: Any, scale: Any, vectors: Any) -> None:
    """One row. The scale of a row with a NaN or an infinite value is a NaN."""
    zero = ir.Constant(F32S, [0.0] * LANES)

    def find_largest(v: Any, before: list[Any]) -> list[Any]:
        values = widened(builder, builder.add(x, builder.mul(v, word(32))))
        size = call(builder, "llvm.fabs.v16f32", F32S, values)
        larger = builder.select(builder.fcmp_ordered(">", size, before[0]), size, before[0])
        return [larger, builder.fadd(before[1], builder.fmul(values, zero))]

    by_lane, broken = repeat(builder, vectors, [zero, zero], find_largest)
    largest = call(builder, "llvm.vector.reduce.fmax.v16f32", F32, by_lane)
    lost = call(builder, "llvm.vector.reduce.fadd.v16f32", F32, ir.Constant(F32, 0.0), broken)
    unit = builder.fdiv(largest, ir.Constant(F32, 127.0))
    store(builder, builder.fadd(unit, lost), scale)
    some = builder.fcmp_ordered(">", largest, ir.Constant(F32, 1e-30))
    inverse = builder.select(some, builder.fdiv(ir.Constant(F32, 127.0), largest), ir.Constant(F32, 0.0))
    factor = broadcast(builder, inverse)

    def write(v: Any, nothing: list[Any]) -> list[Any]:
        values = builder.fmul(widened(builder, builder.add(x, builder.mul(v, word(32)))), factor)
        whole = call(builder, "llvm.rint.v16f32", F32S, values)
        integers = builder.add(builder.fptosi(whole, I32S), ir.Constant(I32S, [128] * LANES))
        store(builder, builder.trunc(integers, I8S), builder.add(out, builder.mul(v, word(16))))
        return nothing

    repeat(builder, vectors, [], write)


@operation
def quantize_rows(record: QuantizeRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    width = record.width
    for row in range(first, first + count):
        x, out = record.x + 2 * width * row, record.out + width * row
        _quantize(x, out, record.scales + 4 * row, width // 16)


@intrinsic(types.uint16(types.float32))
def _bfloat(builder: Any, value: Any) -> Any:
    """A float32 rounded to bfloat16: its bits."""
    bits = OPERATIONS.round_to_bfloat16(builder, broadcast(builder, value))
    return builder.extract_element(bits, ir.Constant(I32, 0))


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


@operation
def quantized_rows(record: QuantizedRowsRecord, first: int, count: int, thread: int) -> None:
    """Rows of a packed weight of integers (kernels.cpu.matmul.gemm), as bfloat16."""
    out, words, width = record.out, record.words, record.width
    for row in range(first, first + count):
        index = read_i64(record.indexes + 8 * row)
        at = record.weight + index // COLUMNS * words * 4 * COLUMNS + index % COLUMNS * 4
        scale = read_f32(record.params + 192 * (index // LANES) + 64 + 4 * (index % LANES))
        for k in range(width):
            value = _signed((read_u32(at + 4 * COLUMNS * (k // 4)) >> (8 * (k % 4))) & 0xFF)
            write_u16(out + 2 * (row * width + k), _bfloat(scale * value))
