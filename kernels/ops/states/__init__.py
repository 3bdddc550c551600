"""Layers that keep a state per row, gated delta nets and Mamba-2: definitions, by torch."""
