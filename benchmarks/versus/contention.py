"""Shares of the cores' time during a measurement, from /proc: the measured processes, others, and the host.

Others are all processes that are neither the measured ones nor this one, also peers that should be idle, and
the kernel's own work. What the
host took away (steal) is time that no process of this machine had. The kernel counts in ticks of 10 ms, so
that a run of a second is known within about one percent.
"""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Look:
    """What was used since the machine started, in seconds of all cores; `at` is a clock."""

    busy: float
    stolen: float
    own: float
    at: float


@dataclass(frozen=True)
class Shares:
    """Of all cores, in percent of the time between two looks."""

    own: float
    others: float
    steal: float

    @property
    def disturbance(self) -> float:
        """What the measured processes could not have."""
        return self.others + self.steal


def look(root: int, proc: Path = PROC) -> Look:
    """Now. root: a process whose time, with that of all below it and with this one's, is `own`."""
    tick = 1 / os.sysconf("SC_CLK_TCK")
    user, nice, system, _idle, _wait, irq, softirq, steal, *_ = map(
        int, (proc / "stat").read_text().splitlines()[0].split()[1:]
    )
    # guest time, which would follow, is in user and nice already
    busy = user + nice + system + irq + softirq
    own = _ticks_of(root, proc) * tick + time.process_time()
    return Look(busy * tick, steal * tick, own, time.monotonic())


def shares(before: Look, after: Look, num_cores: int) -> Shares:
    """Between two looks."""
    all_cores = (after.at - before.at) * num_cores / 100
    own, busy = after.own - before.own, after.busy - before.busy
    return Shares(
        own / all_cores, max(0.0, busy - own) / all_cores, (after.stolen - before.stolen) / all_cores
    )


def below(root: int, proc: Path = PROC) -> list[int]:
    """Returns a process and all below it, by their ids."""
    parents = {pid: int(fields[1]) for pid, fields in _stats(proc).items()}
    return sorted(pid for pid in parents if _is_below(pid, root, parents))


def _ticks_of(root: int, proc: Path) -> int:
    """Of a process and all below it; a child that has ended counts in its parent."""
    stats = _stats(proc)
    parents = {pid: int(fields[1]) for pid, fields in stats.items()}
    return sum(sum(map(int, fields[11:15])) for pid, fields in stats.items() if _is_below(pid, root, parents))


def _stats(proc: Path) -> dict[int, list[str]]:
    """Returns the fields of each process's `stat`, from its state on."""
    stats = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                stats[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()
    return stats


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid and pid != root:
        pid = parents.get(pid, 0)
    return bool(pid)
