"""Blocks of the KV cache that move between workers (docs/distributed.md)."""
