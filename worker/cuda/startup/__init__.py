"""Loading on a CUDA device: limits, memory, warm-up."""
