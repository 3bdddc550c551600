"""Admission of a call: who calls, limits, slots, turns, write timeouts, and whether calls are served."""
