"""Layers that keep a state per row in place of keys and values."""
