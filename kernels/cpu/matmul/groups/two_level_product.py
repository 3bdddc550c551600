"""The product of kernels.cpu.matmul.groups.product with two levels of scales
(kernels.cpu.matmul.groups.two_levels), which is compiled by itself, as a model has one kind of weights."""

from kernels.cpu.compiler.cache import operation_for
from kernels.cpu.matmul.groups.product import multiply_strips
from kernels.cpu.matmul.groups.vectors import TWO_LEVELS

two_level_linear = operation_for(multiply_strips, TWO_LEVELS, suffix="_two_levels")
