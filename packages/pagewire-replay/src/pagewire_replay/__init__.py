"""Replays recordings of an engine core, and simulates other settings on them (docs/scheduling.md)."""
