"""Norms, activations and embedding in Triton."""
