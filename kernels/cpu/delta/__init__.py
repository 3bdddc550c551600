"""Gated delta nets on a CPU: a convolution over the last tokens, the recurrence, and what gates it."""
