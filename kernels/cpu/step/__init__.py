"""Checks a plan and prepares the inputs of a step, one call each."""
