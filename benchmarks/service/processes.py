"""Reads what the kernel reports about the processes of a service."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.e2e.services import command_of

PROC = Path("/proc")
_OF_A_PROCESS = 2
"""Kind of a clock: CPUCLOCK_SCHED of Linux, as precise as the scheduler."""


def below(root: int, proc: Path = PROC) -> dict[int, list[str]]:
    """Returns the fields of `stat`, from the state on, of a process and all below it, by their ids."""
    stats = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                stats[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()
    return {pid: stats[pid] for pid in sorted(stats) if _is_below(pid, root, stats)}


def _is_below(pid: int, root: int, stats: dict[int, list[str]]) -> bool:
    while pid in stats and pid != root:
        pid = int(stats[pid][1])
    return pid == root


def by_role(supervisor: int) -> dict[str, list[int]]:
    """Process ids of a service by the command that they run: frontend, engine, worker. Those of children that
    run no command of ours are left out."""
    found: dict[str, list[int]] = {}
    for pid in below(supervisor).keys() - {supervisor}:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"pagewire" in words and (command := command_of(pid)):  # others compile kernels
                found.setdefault(command, []).append(pid)
    return {role: sorted(pids) for role, pids in found.items()}


def kill_session(process: "subprocess.Popen[Any]") -> None:
    """Ends a process that leads a session, with everything that it has started there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(log: Path) -> str:
    """The last line of a file, or its first 200 characters."""
    return (log.read_text(errors="replace").strip().splitlines() or ["no word"])[-1][:200]


def resident_mb(pid: int) -> float:
    """Resident set in MB (10**6 bytes)."""
    return _megabytes(pid, "status", "VmRSS:")


def proportional_mb(pid: int) -> float:
    """The same, with pages that several processes share divided among them: these can be added up."""
    return _megabytes(pid, "smaps_rollup", "Pss:")


def _megabytes(pid: int, file: str, name: str) -> float:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"process {pid} has no {name.rstrip(':')}")


def tree_mb(root: int) -> float:
    """Proportional sets of a process and of all below it, together: what a service takes from its host."""
    total = 0.0
    for pid in below(root):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, RuntimeError):  # it has just ended
            total += proportional_mb(pid)
    return total


def cpu_seconds(pid: int, children: bool = False) -> float:
    """What all threads of a process have used so far, in user and in kernel mode; ticks of 10 ms. children:
    with those that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if children else 13])) / os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """The same by the process's own clock (clock_getcpuclockid(3)), to the nanosecond: for runs of a few
    seconds."""
    return time.clock_gettime(~pid << 3 | _OF_A_PROCESS)


def context_switches(pid: int, proc: Path = PROC) -> tuple[int, int]:
    """How often its threads that live have waited for something, and were woken, and how often they were
    preempted."""
    voluntary = involuntary = 0
    for file in (proc / str(pid) / "task").glob("*/status"):
        for line in file.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                voluntary += int(line.split()[1])
            elif line.startswith("nonvoluntary_ctxt_switches:"):
                involuntary += int(line.split()[1])
    return voluntary, involuntary
