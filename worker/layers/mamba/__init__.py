"""Layers that keep the state of a selective scan per row in place of keys and values."""
