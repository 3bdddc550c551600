"""Loads checkpoints into parameters, and prepares the memory that they go to."""
