"""Norms, rotary embedding and activations on a CPU."""
