"""Copies of KV blocks in Triton."""
