"""Gated delta nets: definitions, and what torch computes of them."""
