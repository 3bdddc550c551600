"""Generated: the public API."""
