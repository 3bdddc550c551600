"""The number of threads that compute, and how they wait for one another."""

import os

from pagewire.host.resources import SMALL_MODEL_BYTES, available_cores
from pagewire.host.spawn import is_child


def prepare_threads() -> None:
    """Limits how long torch's threads spin for work before they sleep. Call it before torch is imported.

    When other processes need the cores, a spinning thread keeps the thread that has work from running; but
    waking a sleeping thread costs 30 us, as much as a product for one token, and a step has a hundred of
    those. So a thread spins for about 50 us. A decode step of 10 layers of a 135M Llama, batch 1, in ms, by
    the count of spins (2 threads, 2 cores):

        count                    0    1000    10000
        cores free               7.1   4.6      3.8
        another process busy     7-11  9-10    32-38
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def choose_threads(requested: int, weight_bytes: int, cores: int) -> int:
    """Returns the number of threads. requested: 0 for one per core, or one for a small model."""
    if requested > 0:
        return requested
    return 1 if weight_bytes < SMALL_MODEL_BYTES else cores


def own_cores(num_workers: int, pinned: bool) -> int:
    """Returns the number of cores that this worker may keep busy, at least one.

    num_workers: on this host. Threads of two workers on one core wait for one another in every operation, so
    the cores are divided. pinned: no other process runs on the cores of this one. Otherwise one core of more
    than two is left to the other processes of the same service.
    """
    cores = available_cores()
    if pinned:
        return cores
    spared = 1 if is_child() and cores > 2 else 0
    return max(1, (cores - spared) // num_workers)
