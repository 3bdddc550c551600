"""The CUDA device, and its stand-in on the host."""
