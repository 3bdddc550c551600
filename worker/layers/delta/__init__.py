"""Layers of gated delta nets, and attention whose output is gated."""
