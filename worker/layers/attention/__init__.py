"""Attention layers: projections, rotary embeddings, sinks."""
