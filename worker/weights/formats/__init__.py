"""Quantized checkpoints: one file per format, each of which unpacks weights to float32 when they are read."""
