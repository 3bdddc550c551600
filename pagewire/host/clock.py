"""Converts points in time on the monotonic clock to the wall clock."""

import time

MONOTONIC_ORIGIN_NS = time.time_ns() - time.monotonic_ns()
"""Wall-clock time at which the monotonic clock was 0, in nanoseconds since 1970. Constant: lists in pages are
in the order of what is computed from it."""
