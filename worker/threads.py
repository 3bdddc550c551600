"""How many threads torch may use for one operation."""

import os
from pathlib import Path

SMALL_MODEL_BYTES = 64 << 20
"""Below this a step is a chain of operations of a few microseconds each, and splitting them costs
more than it gains: a decode step of the demo model (3.5 MB) takes 2.2 ms on one core and 2.6 ms on
two; and a core that the frontend or the engine core needs just then makes the other one wait."""


def prepare_threads() -> None:
    """Call before torch is imported: how its threads wait for each other.

    They soon sleep instead of spinning on. When other processes want the cores, a spinning thread
    keeps the one that has work from running; but waking a sleeping one costs 30 us, as much as a product
    for one token, and a step has a hundred of those. So a thread spins for about 50 us. A decode step of
    10 layers of a 135M Llama, batch 1, in ms, by the count of spins (2 threads, 2 cores):

        count                    0    1000    10000
        cores free               7.1   4.6      3.8
        another process busy     7-11  9-10    32-38
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def choose_threads(requested: int, weight_bytes: int, num_workers: int = 1) -> int:
    """requested: 0 for all cores that this process may use, or one for a small model.

    num_workers: that share those cores. Threads of two workers on one core wait for one another in every
    operation; so each worker gets its part, one core at least.
    """
    if requested > 0:
        return requested
    return 1 if weight_bytes < SMALL_MODEL_BYTES else max(1, available_cores() // num_workers)


def available_cores() -> int:
    """By CPU affinity, and by the quota of the control group."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
