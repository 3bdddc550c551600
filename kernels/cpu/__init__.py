"""Variants of the operations for CPUs with vector units, compiled by Numba. Empty of imports: numba is
optional, and importing one of these files compiles it."""
