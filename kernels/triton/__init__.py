"""Variants of the operations for CUDA devices, in Triton. Empty of imports: triton is optional, and
importing one of these files imports it.

None of them has run on a GPU yet: they are interpreted, and compiled for sm_90, in tests/kernels/triton.
Sizes come from the compiler and from arithmetic, not from measurements."""
