"""The product of kernels.cpu.matmul.gemm on float32 values: inputs and weights are words as they are.

Each product is rounded once, with its sum, in the order of k, in the same tiles as those of bfloat16. So a
result does not depend on the number of rows either, and is the same with every instruction set.
"""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.matmul.gemm import multiply_strips
from kernels.cpu.matmul.records import LinearRecord
from kernels.cpu.matmul.words import FLOATS


@operation
def linear_float32(record: LinearRecord, first: int, count: int, thread: int) -> None:
    """Units first .. first + count - 1: strips, within a chunk of rows."""
    multiply_strips(FLOATS, record, first, count, thread)
