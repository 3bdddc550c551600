"""The product of kernels.cpu.matmul.groups.product, of words that hold codes of floats
(kernels.cpu.matmul.records). Few models need it, so that it is compiled by itself."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.matmul.groups.product import multiply_strips
from kernels.cpu.matmul.groups.vectors import E2M1
from kernels.cpu.matmul.records import GroupLinearRecord


@operation
def e2m1_linear(record: GroupLinearRecord, first: int, count: int, thread: int) -> None:
    """Units first .. first + count - 1, of weights that are floats of 4 bits."""
    multiply_strips(E2M1, record, first, count, thread)
