"""Limits of this process's control groups: version 2, version 1, or both side by side (Linux).

Groups are nested, and each may have a limit of its own. In a container that mounts only its part of the tree,
the outer groups cannot be read, and the path of its own group may be valid below the mount or not exist at
all: every existing folder on the way up is read.
"""

import math
from collections.abc import Iterator
from pathlib import Path

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
