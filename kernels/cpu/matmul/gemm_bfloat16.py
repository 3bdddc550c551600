"""The product of kernels.cpu.matmul.gemm on pairs of bfloat16."""

from kernels.cpu.compiler.cache import operation_for
from kernels.cpu.matmul.gemm import multiply_strips
from kernels.cpu.matmul.words import PAIRS

linear_bfloat16 = operation_for(multiply_strips, PAIRS, suffix="_bfloat16")
