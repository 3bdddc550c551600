"""Matrices of a model on a CUDA device that are held in 4 or 8 bits."""
