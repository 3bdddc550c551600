"""The product of kernels.cpu.matmul.gemm on pairs of bfloat16."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.matmul.gemm import multiply_strips
from kernels.cpu.matmul.records import LinearRecord
from kernels.cpu.matmul.words import PAIRS


@operation
def linear_bfloat16(record: LinearRecord, first: int, count: int, thread: int) -> None:
    """Units first .. first + count - 1: strips, within a chunk of rows."""
    multiply_strips(PAIRS, record, first, count, thread)
