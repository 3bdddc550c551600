"""CPU cores: which ones this process may use, and how those of a host are divided among processes.

A worker's threads wait for one another many times in a step. If one of them shares its core with a frontend,
all of them wait; so on hosts with more than two cores, workers get cores of their own.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pagewire.host.cgroups import cpu_limit

SMALL_MODEL_BYTES = 64 << 20
"""Size of the weights below which a worker has one thread: a step is a chain of operations of a few
microseconds each, and splitting them costs more than it gains. A decode step of the demo model (3.5 MB) takes
2.2 ms on one core and 2.6 ms on two."""

GPU = Path("/dev/nvidiactl")
"""Exists on hosts with an NVIDIA GPU, where a worker may compute on that and needs few cores."""
SPARED_PART = 8
"""One in so many cores is reserved for the other processes, but at most one for each of them."""


@dataclass(frozen=True, slots=True)
class CorePlan:
    """The cores of each worker and of all other processes."""

    workers: tuple[tuple[int, ...], ...]  # by rank
    others: tuple[int, ...]

    def __str__(self) -> str:
        workers = ", ".join(format_cores(cores) for cores in self.workers)
        owner = "the worker" if len(self.workers) == 1 else "the workers"
        return f"{workers} for {owner}, {format_cores(self.others)} for all other processes"


def affinity() -> list[int]:
    """Returns the cores that this process may run on, sorted so that hyper-threads of a core are adjacent."""
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return list(range(os.cpu_count() or 1))
    return sorted(os.sched_getaffinity(0), key=lambda core: (_siblings(core), core))


def available_cores() -> int:
    """Returns how many cores this process may keep busy: control groups may grant less than its affinity."""
    return max(1, int(min(len(affinity()), cpu_limit())))


def plan_cores(cores: Sequence[int], workers: int, others: int, threads: int = 0) -> CorePlan | None:
    """Divides cores among workers and other processes. Returns None if there are too few.

    threads: cores of each worker; 0: all but the others' share.
    """
    spared = max(1, min(others, len(cores) // SPARED_PART))
    each = threads or (len(cores) - spared) // workers
    if len(cores) <= 2 or each == 0 or each * workers >= len(cores):
        return None
    first = len(cores) - each * workers if threads else spared
    bounds = [first + (len(cores) - first) * rank // workers for rank in range(workers + 1)]
    return CorePlan(
        tuple(tuple(cores[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)), tuple(cores[:first])
    )


def pin(cores: Iterable[int]) -> str | None:
    """Pins this process and its future children to cores. Returns the reason if that fails, else None."""
    if not hasattr(os, "sched_setaffinity"):
        return "this system has no sched_setaffinity()"
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        return str(error)
    return None


def format_cores(cores: Iterable[int]) -> str:
    """Formats cores as taskset and the kernel do: 0-3,6."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def parse_cores(text: str) -> list[int]:
    """Parses the format of format_cores(). Raises ValueError."""
    cores: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        cores.update(range(int(first), int(last if dash else first) + 1))
    return sorted(cores)


def _siblings(core: int) -> int:
    """Returns a number that the hyper-threads of a physical core have in common."""
    try:
        path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        return parse_cores(path.read_text())[0]
    except (OSError, ValueError):
        return core
