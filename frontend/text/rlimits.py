"""Limits that the kernel keeps for a process that reads what strangers have written."""

import resource


def limit_memory(beyond: int) -> None:
    """Address space: so many bytes beyond what this process has."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    lower(resource.RLIMIT_AS, pages * resource.getpagesize() + beyond)


def lower(limit: int, most: int) -> None:
    """One of resource.RLIMIT_*, unless it is lower already."""
    _, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (most if hard < 0 else min(most, hard), hard))
