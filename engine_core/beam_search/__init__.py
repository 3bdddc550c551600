"""Beam search over the rows of one request."""
