"""How many threads torch may use for one operation."""

import os
from pathlib import Path

SMALL_MODEL_BYTES = 64 << 20
"""Below this a step is a chain of operations of a few microseconds each, and splitting them costs
more than it gains: a decode step of the demo model (3.5 MB) takes 2.2 ms on one core and 2.6 ms on
two; and a core that the frontend or the engine core needs just then makes the other one wait."""


def prepare_threads() -> None:
    """Call before torch is imported: how its threads wait for each other.

    They soon sleep instead of spinning on. When other processes want the cores, spinning threads
    keep the one thread that has work from running: a 0.3 ms product of two threads took 8 ms on two
    busy cores, and 0.4 ms with sleeping waiters. But waking a thread costs 30 us, as much as a product
    of one token, and there are hundreds of those in a step: a wait that ends within about 0.2 ms is
    spun through, so that a parallel region costs 2.5 us as long as a step lasts.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def choose_threads(requested: int, weight_bytes: int) -> int:
    """requested: 0 for all cores that this process may use, or one for a small model."""
    if requested > 0:
        return requested
    return 1 if weight_bytes < SMALL_MODEL_BYTES else available_cores()


def available_cores() -> int:
    """By CPU affinity, and by the quota of the control group."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
