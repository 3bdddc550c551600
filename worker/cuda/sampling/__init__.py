"""The sampler of a CUDA device, and what it keeps of rows there."""
