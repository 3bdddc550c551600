"""The product of kernels.cpu.matmul.gemm on integers of 8 bits, as sums of integers: what a rank that has
some of the inputs gives to the others (kernels.cpu.matmul.int8)."""

from kernels.cpu.compiler.cache import operation_for
from kernels.cpu.matmul.gemm import multiply_strips
from kernels.cpu.matmul.words import QUAD_SUMS

linear_int8_sums = operation_for(multiply_strips, QUAD_SUMS, suffix="_int8_sums")
