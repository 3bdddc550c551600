"""The rows of docs/limits.md."""
