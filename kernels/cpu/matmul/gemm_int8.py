"""The product of kernels.cpu.matmul.gemm on integers of 8 bits (kernels.cpu.matmul.int8), rows of bfloat16 as
such integers with a scale for each row, and rows of quantized weights as bfloat16."""

from kernels.cpu.compiler.cache import operation, operation_for
from kernels.cpu.compiler.language import float32
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.isa.lanes import larger, largest_lane, store_i8, truncated
from kernels.cpu.isa.simd import bf16_of, load_bf16, rint, sum_in_order
from kernels.cpu.isa.vectors import LANES, read_f32, read_i64, read_u32, write_f32, write_u16
from kernels.cpu.matmul.gemm import multiply_strips
from kernels.cpu.matmul.records import QuantizedRowsRecord, QuantizeRecord
from kernels.cpu.matmul.words import QUADS
from kernels.cpu.runtime.work_split import COLUMNS

linear_int8 = operation_for(multiply_strips, QUADS, suffix="_int8")


LEAST = 1e-30
"""A row of nothing larger is a row of zeros."""


def _quantize(x: int, out: int, scale: int, vectors: int) -> None:
    """One row. The scale of a row with a NaN or an infinite value is a NaN."""
    by_lane, broken = f32x16(0.0), f32x16(0.0)
    for v in range(vectors):
        values = load_bf16(x + 32 * v)
        by_lane = larger(abs(values), by_lane)
        broken += values * 0.0
    largest = largest_lane(by_lane)
    write_f32(scale, float32(float32(largest / float32(127.0)) + sum_in_order(broken)))
    factor = float32(0.0)
    if largest > float32(LEAST):
        factor = float32(float32(127.0) / largest)
    for v in range(vectors):
        integers = truncated(rint(load_bf16(x + 32 * v) * factor)) + 128
        store_i8(out + 16 * v, integers)


@operation
def quantize_rows(record: QuantizeRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1: each leaf as a row of its own."""
    width = record.width >> record.depth
    for part in range(first << record.depth, first + count << record.depth):
        x, out = record.x + 2 * width * part, record.out + width * part
        _quantize(x, out, record.scales + 4 * part, width // 16)


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
            write_u16(out + 2 * (row * width + k), bf16_of(scale * value))
