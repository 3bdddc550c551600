"""What the kernel says of another process on this host: whether it computes, and whether it could."""

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_STATE, _USER_TICKS, _SYSTEM_TICKS = 0, 11, 12
"""Fields of /proc/PID/stat, counted from the one after the command's name."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """Of one process, at one time."""

    state: str
    """Of its main thread. R: it runs, or could. S: it sleeps. D: it waits for a disk. T: it was stopped."""
    cpu_s: float
    """Seconds that its threads have computed so far."""
    starved_s: float
    """Seconds that its main thread was ready to run while others had the cores."""

    def computes_since(self, before: "Vitals", seconds: float) -> bool:
        """Whether it has computed in the seconds since then, more than a thread that only ticks."""
        return self.cpu_s - before.cpu_s >= 0.05 * seconds


def read_vitals(pid: int) -> Vitals | None:
    """None where the kernel does not say: it has ended, or this is not Linux."""
    folder = Path(f"/proc/{pid}")
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    except (OSError, IndexError, ValueError):
        return None
    try:  # nanoseconds on a core, nanoseconds waiting for one, turns
        starved_ns = int((folder / "schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        starved_ns = 0  # a kernel that does not count it
    return Vitals(fields[_STATE], ticks / _TICKS_PER_S, starved_ns / 1e9)
