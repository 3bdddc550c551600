"""Inputs of a step and history of rows in Triton."""
