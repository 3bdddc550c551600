"""Candidates and limits of top-k, top-p, min-p and typical-p."""
