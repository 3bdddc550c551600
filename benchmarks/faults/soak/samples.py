"""Memory and descriptors of processes over time, and whether they grow."""

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression

from benchmarks.service.processes import by_role, resident_mb
from pagewire.host.standby import NAME

MOST_GROWTH_MB, MOST_GROWTH = 4.0, 0.04
"""What the resident set may grow by over the second half of the time, in MB and as a part of itself: what is
more is taken for a leak. Heaps still find their size in the first half."""
MOST_DESCRIPTORS = 12
"""By which their number may grow: connections that are open at one moment and not at another."""
LEAST_SECONDS = 60.0
"""Processes that were seen for less are not judged: those that were killed."""


@dataclass
class Samples:
    """What was seen of one process."""

    role: str
    pid: int
    seconds: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    @property
    def lived(self) -> float:
        """Seconds between the first sample and the last."""
        return self.seconds[-1] - self.seconds[0]

    @property
    def growth_mb(self) -> float:
        """By how much the resident set has grown over the second half, by the line that fits best."""
        return _growth(*self._second_half(self.megabytes))

    @property
    def more_descriptors(self) -> float:
        """The same of descriptors."""
        return _growth(*self._second_half([float(count) for count in self.descriptors]))

    @property
    def grows(self) -> bool:
        """Whether it has to be explained."""
        if self.lived < LEAST_SECONDS:
            return False
        allowed = max(MOST_GROWTH_MB, MOST_GROWTH * self.megabytes[len(self.megabytes) // 2])
        return self.growth_mb > allowed or self.more_descriptors > MOST_DESCRIPTORS

    def _second_half(self, values: list[float]) -> tuple[list[float], list[float]]:
        middle = len(values) // 2
        return self.seconds[middle:], values[middle:]


def _growth(seconds: list[float], values: list[float]) -> float:
    """Slope of the least squares line times the time that it spans."""
    if len(set(seconds)) < 2:
        return 0.0
    return linear_regression(seconds, values).slope * (seconds[-1] - seconds[0])


class Sampler:
    """Looks at the supervisor and all processes below it."""

    def __init__(self, supervisor: int) -> None:
        self.samples: dict[tuple[int, bool], Samples] = {}
        """By process and whether it stands by: a standby grows until it has imported everything."""
        self._supervisor = supervisor

    def look(self) -> None:
        """Takes one sample of each process that lives."""
        for role, pids in {"supervisor": [self._supervisor], **self._below()}.items():
            for pid in pids:
                with contextlib.suppress(OSError, RuntimeError):  # it has just ended
                    megabytes, count = resident_mb(pid), len(os.listdir(f"/proc/{pid}/fd"))
                    stands_by = Path(f"/proc/{pid}/comm").read_bytes().strip() == NAME
                    name = f"{role}, standby" if stands_by else role
                    samples = self.samples.setdefault((pid, stands_by), Samples(name, pid))
                    samples.seconds.append(time.monotonic())
                    samples.megabytes.append(megabytes)
                    samples.descriptors.append(count)

    def _below(self) -> dict[str, list[int]]:
        for _ in range(5):
            with contextlib.suppress(OSError, ValueError, IndexError):  # a process ended while it was read
                return by_role(self._supervisor)
        return {}

    def judged(self) -> list[Samples]:
        """Those that lived long enough, by role."""
        judged = [each for each in self.samples.values() if each.lived >= LEAST_SECONDS]
        return sorted(judged, key=lambda each: (each.role, each.pid))


def table(samples: list[Samples]) -> str:
    """A row for each process."""
    lines = [
        "| process | seconds | MB: first, last | growth of the second half | descriptors: first, last | |",
        "| --- | ---: | --- | ---: | --- | --- |",
    ]
    for each in samples:
        lines.append(
            f"| {each.role} {each.pid} | {each.lived:.0f} | {each.megabytes[0]:.1f}, {each.megabytes[-1]:.1f}"
            f" | {each.growth_mb:+.2f} MB | {each.descriptors[0]}, {each.descriptors[-1]}"
            f" | {'GROWS' if each.grows else 'flat'} |"
        )
    return "\n".join(lines)
