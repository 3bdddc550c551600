"""The product of kernels.cpu.matmul.gemm on float32 values: inputs and weights are words as they are.

Each product is rounded once, with its sum, in the order of k, in the same tiles as those of bfloat16. So a
result does not depend on the number of rows either, and is the same with every instruction set.
"""

from kernels.cpu.compiler.cache import operation_for
from kernels.cpu.matmul.gemm import multiply_strips
from kernels.cpu.matmul.words import FLOATS

linear_float32 = operation_for(multiply_strips, FLOATS, suffix="_float32")
