"""What memory this host, or the control group of this process, has left."""

import os
from pathlib import Path

from pagewire.host.cgroups import memory_left


def available_memory() -> int:
    """Returns the bytes that this process may still use: what the machine has left, or its control group if
    that is less."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
    return int(min(available, memory_left()))


def oom_kills() -> int:
    """Returns how many processes the kernel has killed on this machine because memory ran out."""
    for line in _read("/proc/vmstat").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
