"""Variants of the operations for CPUs with vector units, compiled by LLVM. Empty of imports: llvmlite
is optional, and importing one of these files compiles it."""
