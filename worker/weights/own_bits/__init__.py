"""Matrices that keep the integers that their checkpoint stores, in the packed form of the CPU's kernels."""
