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


def largest_of(x: int, vectors: int) -> tuple[float, float]:
    """The largest absolute value of a row, and what makes a NaN of it where a value is none, or is infinite;
    else 0."""
    by_lane, broken = f32x16(0.0), f32x16(0.0)
    for v in range(vectors):
        values = load_bf16(x + 32 * v)
        by_lane = larger(abs(values), by_lane)
        broken += values * 0.0
    return largest_lane(by_lane), sum_in_order(broken)


def _quantize(x: int, out: int, scale: int, vectors: int, whole: int) -> None:
    """One row. The scale of a row with a NaN or an infinite value is a NaN. whole: address of the largest
    value of the row of which x is a part; 0: x is all."""
    largest, broken = largest_of(x, vectors)
    if whole != 0:
        largest = read_f32(whole)
    write_f32(scale, float32(float32(largest / float32(127.0)) + broken))
    factor = float32(0.0)
    if largest > float32(LEAST):
        factor = float32(float32(127.0) / largest)
    for v in range(vectors):
        integers = truncated(rint(load_bf16(x + 32 * v) * factor)) + 128
        store_i8(out + 16 * v, integers)


@operation
def quantize_rows(record: QuantizeRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    width = record.width
    for row in range(first, first + count):
        x, out = record.x + 2 * width * row, record.out + width * row
        whole = record.largest + 4 * row if record.largest != 0 else 0
        _quantize(x, out, record.scales + 4 * row, width // 16, whole)


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
