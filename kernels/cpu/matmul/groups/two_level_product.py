"""The product of kernels.cpu.matmul.groups.product with two levels of scales
(kernels.cpu.matmul.groups.two_levels), which is compiled by itself, as a model has one kind of weights."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.matmul.groups.product import multiply_strips
from kernels.cpu.matmul.groups.vectors import TWO_LEVELS
from kernels.cpu.matmul.records import GroupLinearRecord


@operation
def two_level_linear(record: GroupLinearRecord, first: int, count: int, thread: int) -> None:
    """Units first .. first + count - 1, of weights with two levels of scales."""
    multiply_strips(TWO_LEVELS, record, first, count, thread)
