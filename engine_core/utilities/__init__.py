"""Answers to frontends' questions about the core."""
