"""The orders of admission that there are, by the names of --policy."""

from engine_core.fair_queue import FairQueue
from engine_core.tenants import Weights
from engine_core.waiting import FirstComeQueue, WaitingQueue

FAIR, FIRST_COME = "fair", "fcfs"


def make_queue(policy: str, weights: Weights) -> WaitingQueue:
    """An empty queue. weights: who is due how much, where that counts."""
    if policy == FIRST_COME:
        return FirstComeQueue()
    assert policy == FAIR, policy
    return FairQueue(weights)
