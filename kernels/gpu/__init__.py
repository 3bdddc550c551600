"""Variants of the operations for CUDA devices, in Triton. Empty of imports: triton is optional, and
importing one of these files imports it."""
