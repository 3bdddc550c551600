"""Paged attention on a CPU."""
