"""The levels of a sweep, when the requests of a level are due, and the limits of goodput."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pagewire.flags import UsageError

GOAL_NAMES = ("ttft", "itl", "tpot", "e2e")
MAX_LEVEL = 1_000_000
Pattern = Literal["poisson", "constant"]


@dataclass(frozen=True)
class Load:
    """How requests come. Exactly one of the two is set.

    rate: requests per second, at their own times, however busy the service is (an open loop). concurrency:
    requests in flight; each one that ends is followed by the next (a closed loop).
    """

    rate: float | None = None
    concurrency: int | None = None

    @property
    def value(self) -> float:
        """The number of the level."""
        return float(self.rate if self.rate is not None else self.concurrency or 0)

    @property
    def unit(self) -> str:
        """What the number counts."""
        return "requests/s" if self.rate is not None else "concurrent"

    @property
    def axis(self) -> str:
        """What the number counts, in words for a plot."""
        return self.unit if self.rate is not None else "requests in flight"

    @property
    def name(self) -> str:
        """Such as "8 concurrent"."""
        return f"{self.value:g} {self.unit}"


@dataclass(frozen=True)
class Amount:
    """How much is sent at each level. num_requests: or as many as come within `duration` seconds."""

    num_requests: int | None
    duration: float | None


def due_times(per_second: float, draw: random.Random, pattern: Pattern = "poisson") -> Iterator[float]:
    """Yields when requests of an open loop are due, in seconds since its start, for ever.

    poisson: intervals are exponentially distributed, as those of many independent clients are; constant: they
    are equal."""
    at = 0.0
    while True:
        at += draw.expovariate(per_second) if pattern == "poisson" else 1 / per_second
        yield at


def read_loads(rate: str, concurrency: str) -> list[Load]:
    """Reads --rate and --concurrency: numbers with commas. Raises UsageError."""
    if rate and concurrency:
        raise UsageError("--rate and --concurrency exclude each other")
    if rate:
        return [Load(rate=value) for value in _numbers("--rate", rate)]
    levels = _numbers("--concurrency", concurrency)
    if any(value != int(value) for value in levels):
        raise UsageError(f"wrong --concurrency {concurrency!r}", "it is a list of integers such as 1,8,64")
    return [Load(concurrency=int(value)) for value in levels]


def read_goals(text: str) -> dict[str, float]:
    """Reads --goodput, such as "ttft=200,itl=50": milliseconds by figure. Raises UsageError."""
    goals: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, _, limit = part.partition("=")
        try:
            value = float(limit)
        except ValueError:
            value = math.nan
        if name not in GOAL_NAMES or not 0 < value < math.inf or name in goals:
            names = ", ".join(GOAL_NAMES)
            raise UsageError(
                f"wrong --goodput {text!r}", f"{part!r} is not NAME=MILLISECONDS, each NAME once: {names}"
            )
        goals[name] = value
    return goals


def _numbers(option: str, text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < value <= MAX_LEVEL for value in found) or len(set(found)) != len(found):
        raise UsageError(
            f"wrong {option} {text!r}", f"it is a list of different numbers above 0, to {MAX_LEVEL:,}"
        )
    return found
