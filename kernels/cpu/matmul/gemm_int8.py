"""The product of kernels.cpu.matmul.gemm on integers of 8 bits (kernels.cpu.matmul.int8)."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.matmul.gemm import multiply_strips
from kernels.cpu.matmul.records import LinearRecord
from kernels.cpu.matmul.words import QUADS


@operation
def linear_int8(record: LinearRecord, first: int, count: int, thread: int) -> None:
    """Units first .. first + count - 1: strips, within a chunk of rows."""
    multiply_strips(QUADS, record, first, count, thread)
