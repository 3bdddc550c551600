"""Sampling and log-probabilities in Triton."""
