"""Limits of requests: frontends report violations to clients, and the engine core checks again."""
