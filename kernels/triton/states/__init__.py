"""Layers that keep a state per row on CUDA: kernels.ops.states in Triton."""
