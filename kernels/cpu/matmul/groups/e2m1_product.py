"""The product of kernels.cpu.matmul.groups.product, of words that hold codes of floats
(kernels.cpu.matmul.records). Few models need it, so that it is compiled by itself."""

from kernels.cpu.compiler.cache import operation_for
from kernels.cpu.matmul.groups.product import multiply_strips
from kernels.cpu.matmul.groups.vectors import E2M1

e2m1_linear = operation_for(multiply_strips, E2M1, suffix="_e2m1")
