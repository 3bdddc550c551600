"""Mixtures of experts on a CPU: routing, tokens sorted by expert, products of several experts as one
operation."""
