"""Mamba-2 layers: definitions, and what torch computes of them."""
