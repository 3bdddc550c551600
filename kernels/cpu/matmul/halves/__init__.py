"""Weights of float32 whose values are float16, held in the 16 bits of these."""
