"""Rows that pool: their hidden states become one vector, in place of tokens (docs/embeddings.md)."""
