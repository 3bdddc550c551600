"""Layers that keep a state per row on a CPU: gated delta nets and Mamba-2."""
