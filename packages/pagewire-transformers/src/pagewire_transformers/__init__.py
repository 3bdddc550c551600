"""Decoders without a family here, computed by the modelling code of `transformers`, with attention on our KV
cache (docs/transformers-backend.md)."""
