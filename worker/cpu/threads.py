"""How many threads compute."""

import os

from pagewire.host.cores import SMALL_MODEL_BYTES, available_cores
from pagewire.host.spawn import is_child


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


def choose_threads(requested: int, weight_bytes: int, cores: int) -> int:
    """requested: 0 for as many as there are cores for this worker, or one for a small model."""
    if requested > 0:
        return requested
    return 1 if weight_bytes < SMALL_MODEL_BYTES else cores


def own_cores(num_workers: int, pinned: bool) -> int:
    """How many cores this worker may keep busy, at least one.

    num_workers: on this host. Threads of two workers on one core wait for one another in every operation, so
    each gets its part. pinned: nobody else runs on the cores of this process. Where it is not, one of more
    than two is left to the processes of the same service.
    """
    cores = available_cores()
    if pinned:
        return cores
    spared = 1 if is_child() and cores > 2 else 0
    return max(1, (cores - spared) // num_workers)
