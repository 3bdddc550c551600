"""The product of kernels.cpu.matmul.gemm on integers of 8 bits (kernels.cpu.matmul.int8)."""

from kernels.cpu.compiler.cache import operation_for
from kernels.cpu.matmul.gemm import multiply_strips
from kernels.cpu.matmul.words import QUADS

linear_int8 = operation_for(multiply_strips, QUADS, suffix="_int8")
