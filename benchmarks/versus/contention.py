"""Shares of the cores' time during a measurement, from /proc: the measured processes, others, and the host.

Others are all processes that are neither the measured ones nor this one, also peers that should be idle, and
the kernel's own work. What the
host took away (steal) is time that no process of this machine had. The kernel counts in ticks of 10 ms, so
that a run of a second is known within about one percent.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.service.processes import PROC, below


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
    # a child that has ended counts in its parent
    own = sum(sum(map(int, fields[11:15])) for fields in below(root, proc).values())
    return Look(busy * tick, steal * tick, own * tick + time.process_time(), time.monotonic())


def shares(before: Look, after: Look, num_cores: int) -> Shares:
    """Between two looks."""
    all_cores = (after.at - before.at) * num_cores / 100
    own, busy = after.own - before.own, after.busy - before.busy
    return Shares(
        own / all_cores, max(0.0, busy - own) / all_cores, (after.stolen - before.stolen) / all_cores
    )
