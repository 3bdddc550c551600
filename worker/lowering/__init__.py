"""Lowering: layers write their operations down as the records of one program for the CPU's compiled
kernels."""
