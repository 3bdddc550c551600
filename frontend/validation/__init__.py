"""Judges every field of a request by name, and fills in defaults."""
