"""A first look at a tokenizer, in a process that may end of it.

The tokenizers library is native code: some files make it abort, and others ask for all the memory there is.
Nothing can catch that but another process. It costs a frontend at its start what reading the files costs,
while the engine loads weights.
"""

import os
import resource
import signal
from collections.abc import Callable

from frontend.text.rlimits import limit_memory, lower
from pagewire.errors import StartupError
from pagewire.host import spawn as process

CPU_SECONDS = 60
"""The largest tokenizers take about two."""
MEMORY = 4 << 30
"""Bytes of address space beyond what this process has. The largest tokenizers take 400 MB."""


def try_first(read: Callable[[], object], model: str) -> None:
    """Does `read` in a fork, before there are threads. Raises StartupError when that process is killed.

    What `read` raises is no matter here: it will raise it again in this process.
    """
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _read_and_exit(read, parent)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        by = signal.Signals(os.WTERMSIG(status))
        raise StartupError(
            "cannot read the tokenizer",
            f"the tokenizer.json of {model} ended the process that tried to read it ({by.name})",
            "save the tokenizer again, or get it from where it came",
            may_pass=by is signal.SIGKILL,  # which it does not do to itself
        )


def _read_and_exit(read: Callable[[], object], parent: int) -> None:
    """The child. Nothing of what it says helps anybody."""
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
