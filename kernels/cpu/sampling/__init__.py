"""Choosing tokens on a CPU."""
