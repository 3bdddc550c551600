"""CPU cores and memory: what this process may use, and how cores are divided among the processes of a host.

A worker's threads wait for one another many times in a step. If one of them shares its core with a frontend,
all of them wait; so on hosts with more than two cores, workers get cores of their own.

Control groups (version 2, version 1, or both side by side) are nested, and each may have a limit of its own.
In a container that mounts only its part of the tree, the outer groups cannot be read, and the path of its own
group may be valid below the mount or not exist at all: every existing folder on the way up is read.
"""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """Returns the cores that this process may run on, sorted as by_node() does."""
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return list(range(os.cpu_count() or 1))
    return by_node(os.sched_getaffinity(0))


def by_node(cores: Iterable[int]) -> list[int]:
    """Returns cores sorted so that those of a NUMA node are adjacent, and in it the hyper-threads of a
    core."""
    return sorted(cores, key=lambda core: (_node(core), _siblings(core), core))


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


def _node(core: int) -> int:
    """Returns the NUMA node of a core; 0 where the kernel names none."""
    folders = Path(f"/sys/devices/system/cpu/cpu{core}").glob("node[0-9]*")
    return min((int(folder.name.removeprefix("node")) for folder in folders), default=0)


def _siblings(core: int) -> int:
    """Returns a number that the hyper-threads of a physical core have in common."""
    try:
        path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        return parse_cores(path.read_text())[0]
    except (OSError, ValueError):
        return core


def available_memory() -> int:
    """Returns the bytes that this process may still use: what the machine has left, or its control group if
    that is less."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
    return int(min(available, memory_left()))


def oom_kills() -> int:
    """Returns how many processes the kernel has killed on this machine because memory ran out."""
    for line in _read(Path("/proc/vmstat")).splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


ROOT = Path("/")


def cpu_limit(root: Path = ROOT) -> float:
    """Returns the CPU limit in cores, infinite if there is none. root: for tests."""
    limits = [math.inf]
    for folder in _folders("cpu", root):
        version_1 = f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"
        for text in (_read(folder / "cpu.max"), version_1):
            quota, _, period = text.partition(" ")
            if quota.isdecimal() and period.isdecimal() and int(period):  # not "max", not "-1"
                limits.append(int(quota) / int(period))
    return min(limits)


def memory_left(root: Path = ROOT) -> float:
    """Returns the bytes that may still be allocated, infinite if there is no limit."""
    left = [math.inf]
    for folder in _folders("memory", root):
        for most, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, usage = _read(folder / most), _read(folder / used)
            if limit.isdecimal() and usage.isdecimal():
                left.append(max(0, int(limit) - int(usage)))
    return min(left)


def _folders(controller: str, root: Path) -> Iterator[Path]:
    """Yields the folders of the groups that contain this process, innermost first."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:  # version 2 has one tree, with its files at the top or below
            mounts = ["", "unified"]
        elif controller in controllers.split(","):
            mounts = [controllers, controller]
        else:
            continue
        names = [name for name in path.split("/") if name not in ("", "..")]
        for mount in dict.fromkeys(mounts):
            for depth in range(len(names), -1, -1):
                yield (root / "sys/fs/cgroup" / mount).joinpath(*names[:depth])


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
