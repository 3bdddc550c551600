"""Reads recordings: comparisons, summaries, other settings, a model of step times."""
