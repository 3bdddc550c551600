"""The clock of a simulated device: the machine's, for load tests, or a virtual one, for unit tests."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """Reads time and lets it pass, in seconds."""

    now: Callable[[], float]
    """Returns the time of the machine's monotonic clock, or of a virtual one."""
    sleep: Callable[[float], None]
    """Returns once the given number of seconds has passed."""


REAL_TIME = Clock(time.monotonic, time.sleep)
