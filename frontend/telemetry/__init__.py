"""Counters, timings and traces of a frontend."""
