"""Embeddings: the requests that make them, and their vectors (docs/embeddings.md)."""
