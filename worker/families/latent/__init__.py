"""Families with latent attention (worker.layers.latent.attention)."""
