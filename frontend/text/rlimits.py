"""Limits that the kernel enforces on a process that reads untrusted data."""

import resource


def limit_memory(beyond: int) -> None:
    """Limits the address space to `beyond` bytes more than this process has now."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    lower(resource.RLIMIT_AS, pages * resource.getpagesize() + beyond)


def lower(limit: int, most: int) -> None:
    """Lowers one of resource.RLIMIT_*, unless it is lower already."""
    _, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (most if hard < 0 else min(most, hard), hard))
