"""Another process on this host: CPU time, state and run-queue delay from /proc, and exit codes in words."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_STATE, _USER_TICKS, _SYSTEM_TICKS, _EXIT_STATUS = 0, 11, 12, 49
"""Fields of /proc/PID/stat, counted from the one after the command name."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """Statistics of one process at one time."""

    state: str
    """State of its main thread. R: running or runnable. S: sleeping. D: waiting for a disk. T: stopped."""
    cpu_s: float
    """CPU seconds of all its threads."""
    starved_s: float
    """Seconds that its main thread was runnable but had no core."""

    def computes_since(self, before: "Vitals", seconds: float) -> bool:
        """True if it used more CPU time in the `seconds` since then than a thread that only polls."""
        return self.cpu_s - before.cpu_s >= 0.05 * seconds


def read_vitals(pid: int) -> Vitals | None:
    """Returns None if the process has ended, or where there is no /proc."""
    folder = Path(f"/proc/{pid}")
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    except (OSError, IndexError, ValueError):
        return None
    try:  # nanoseconds on a core, nanoseconds waiting for one, time slices
        starved_ns = int((folder / "schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        starved_ns = 0  # not counted by this kernel
    return Vitals(fields[_STATE], ticks / _TICKS_PER_S, starved_ns / 1e9)


def read_exit_code(pid: int) -> int | None:
    """Returns how a process has ended that its parent has not waited for, in subprocess's way: -9 for
    SIGKILL. None: it runs, was waited for, or belongs to another user."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return os.waitstatus_to_exitcode(int(fields[_EXIT_STATUS])) if fields[_STATE] == "Z" else None
    except (OSError, IndexError, ValueError):
        return None


def ended_from_outside(code: int | None) -> bool:
    """Returns whether another process has ended one, by SIGKILL or by asking it to end, after which ours
    exit with 0. code: of subprocess."""
    asked = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
    return code in (0, 128 + signal.SIGINT, -signal.SIGKILL, *(-number for number in asked))


def describe_exit(code: int) -> str:
    """Returns a clause for a return code of subprocess, such as "it was killed by SIGTERM"."""
    if code >= 0:
        return f"it ended with exit code {code}"
    why = f"it was killed by {signal.Signals(-code).name}"
    return f"{why}, which is also what happens when memory runs out" if code == -signal.SIGKILL else why
