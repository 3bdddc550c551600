"""Adapters (LoRA) by Triton's kernels."""
