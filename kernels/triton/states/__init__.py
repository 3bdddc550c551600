"""Layers that keep a state per row on CUDA: kernels.ops.delta and kernels.ops.mamba in Triton."""
