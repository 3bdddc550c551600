"""Contracts between our own processes."""
