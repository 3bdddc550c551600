"""Attention over latents: one vector of a position is the key of all heads, and holds their value."""
