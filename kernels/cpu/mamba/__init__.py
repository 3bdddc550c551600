"""Mamba-2 layers on a CPU: the selective scan, and the norm that gates it."""
