"""The product of kernels.cpu.matmul.gemm on integers of 8 bits, as sums of integers: what a rank that has
some of the inputs gives to the others (kernels.cpu.matmul.int8). In a program, what ranks make of one
another's largest values, and of these sums."""

from kernels.cpu.compiler.cache import operation, operation_for
from kernels.cpu.compiler.language import float32
from kernels.cpu.isa.simd import load_first_f32, load_first_i32, store_first_bf16, to_f32
from kernels.cpu.isa.vectors import LANES, read_f32, write_f32
from kernels.cpu.matmul.gemm import multiply_strips
from kernels.cpu.matmul.gemm_int8 import largest_of
from kernels.cpu.matmul.records import LargestOfPartsRecord, LargestOfRowsRecord, ScaledSumsRecord
from kernels.cpu.matmul.words import QUAD_SUMS

linear_int8_sums = operation_for(multiply_strips, QUAD_SUMS, suffix="_int8_sums")


@operation
def largest_of_rows(record: LargestOfRowsRecord, first: int, count: int, thread: int) -> None:
    """The largest absolute values of rows first .. first + count - 1; NaN where one is no number, or is
    infinite."""
    for row in range(first, first + count):
        largest, broken = largest_of(record.x + 2 * record.width * row, record.width // LANES)
        write_f32(record.out + 4 * row, float32(largest + broken))


@operation
def largest_of_parts(record: LargestOfPartsRecord, first: int, count: int, thread: int) -> None:
    """The largest of all parts, for rows first .. first + count - 1; NaN where one is."""
    for row in range(first, first + count):
        largest, broken = float32(0.0), float32(0.0)
        for number in range(record.num_parts):
            value = read_f32(record.parts + record.stride * number + 4 * row)
            broken = float32(broken + float32(value * float32(0.0)))
            largest = max(largest, value)
        write_f32(record.out + 4 * row, float32(largest + broken))


@operation
def scaled_sums(record: ScaledSumsRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1: the sums of all parts, with both scales and the bias."""
    width = record.width
    for row in range(first, first + count):
        scale = read_f32(record.scales + 4 * row)
        for i in range(0, width, LANES):
            at, left = record.parts + 4 * (width * row + i), width - i
            total = load_first_i32(at, left)
            for number in range(1, record.num_parts):
                total = total + load_first_i32(at + record.stride * number, left)
            result = to_f32(total) * load_first_f32(record.weight_scales + 4 * i, left) * scale
            if record.bias:
                result = result + load_first_f32(record.bias + 4 * i, left)
            store_first_bf16(record.out + 2 * (width * row + i), result, left)
