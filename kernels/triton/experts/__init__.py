"""Mixtures of experts in Triton: the choice, the order of pairs, products by expert, and their sums."""
