"""When the requests of an open-loop load are due: independent of how busy the service is."""

import random
from collections.abc import Iterator
from typing import Literal

Pattern = Literal["poisson", "constant"]


def due_times(per_second: float, draw: random.Random, pattern: Pattern = "poisson") -> Iterator[float]:
    """Yields seconds since the start, for ever. poisson: intervals are exponentially distributed, as those of
    many independent clients are; constant: they are equal."""
    at = 0.0
    while True:
        at += draw.expovariate(per_second) if pattern == "poisson" else 1 / per_second
        yield at
