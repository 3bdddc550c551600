"""Blocks of the KV cache that move between engine cores (docs/distributed.md)."""
