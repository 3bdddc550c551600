"""Where a simulated device takes its time from: the machine, for load; a number, for tests."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds, and how they pass."""

    now: Callable[[], float]
    """By the machine's monotonic clock, or by a virtual one."""
    sleep: Callable[[float], None]
    """Returns when so many seconds have passed."""


REAL_TIME = Clock(time.monotonic, time.sleep)
