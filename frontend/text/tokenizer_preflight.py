"""Loads the tokenizer once in a forked process that may die of it, within limits that the kernel enforces.

The tokenizers library is native code: some files make it abort, others make it allocate all memory, and only
another process survives that. At start-up this costs a frontend the time to read the files once more, while
the engine loads weights.
"""

import os
import resource
import select
import signal
from collections.abc import Callable

from pagewire.errors import StartupError
from pagewire.host import spawn as process
from pagewire.host.proc_stat import read_vitals

CPU_SECONDS = 60
"""The largest tokenizers take about two."""
MEMORY = 4 << 30
"""Bytes of address space beyond this process's. The largest tokenizers take 400 MB."""


def try_first(read: Callable[[], object], model: str, progress: Callable[[float], None]) -> None:
    """Calls `read` in a fork, before there are threads. Raises StartupError when that process is killed.

    progress: called with a fraction while the fork computes; this process waits, and would count as hung.
    Exceptions of `read` are ignored: it will raise them again in this process.
    """
    parent, (end, held), seen = os.getpid(), os.pipe(), 0.0  # the fork holds a side of the pipe until it ends
    child = os.fork()
    if child == 0:
        _read_and_exit(read, parent)
    os.close(held)
    while not select.select([end], [], [], process.Heartbeat.INTERVAL_S)[0]:
        vitals = read_vitals(child)
        if vitals is not None and vitals.cpu_s > seen:
            seen = vitals.cpu_s
            progress(min(1.0, seen / CPU_SECONDS))
    os.close(end)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        by = signal.Signals(os.WTERMSIG(status))
        raise StartupError(
            "cannot read the tokenizer",
            f"the tokenizer.json of {model} ended the process that tried to read it ({by.name})",
            "save the tokenizer again, or get it from where it came",
            may_pass=by is signal.SIGKILL,  # sent from outside, such as by the OOM killer
        )


def _read_and_exit(read: Callable[[], object], parent: int) -> None:
    """Runs in the child, whose output is discarded."""
    try:
        process.die_with(parent, signal.SIGKILL)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 2)
        limit_memory(MEMORY)
        lower(resource.RLIMIT_CPU, CPU_SECONDS)
        lower(resource.RLIMIT_CORE, 0)
        read()
    finally:
        os._exit(0)


def limit_memory(beyond: int) -> None:
    """Limits the address space to `beyond` bytes more than this process has now."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    lower(resource.RLIMIT_AS, pages * resource.getpagesize() + beyond)


def lower(limit: int, most: int) -> None:
    """Lowers one of resource.RLIMIT_*, unless it is lower already."""
    _, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (most if hard < 0 else min(most, hard), hard))
